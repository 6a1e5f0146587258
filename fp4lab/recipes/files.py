"""Recipes as files: TOML, JSON and the hash.

Formats and element types that come with fp4lab are written by name; a user's own are written out,
so that a file can be read where they are not registered. Where the numerics of layers stand, a file
may give the name of a recipe instead, of which it takes these alone, without its rules:

    name = "mine"
    linear = "nvfp4-rht"

    [[rules]]
    pattern = "head"
    use = "bf16"

    [[rules]]
    pattern = "*.mlp.*"
    blocks = { end = "first", count = 1 }
    use = "mxfp8"

Operands that a table leaves out stay as they are (float32, not BF16); the last rule that matches a
layer wins. Recipes inside a recipe (`to` of a switch) are written out, but may be read by name.

A file may declare formats, which have names in this file alone, wherever a registered one would:

    name = "mine"
    linear = "nvfp4_1x32"

    [[formats]]
    name = "nvfp4_1x32"
    element = "e2m1"
    block = [1, 32]
    scale = "e4m3"
    level = "tensor"
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from fp4lab import formats
from fp4lab.errors import InputError, expect
from fp4lab.formats import ELEMENTS, BlockFormat, ElementType
from fp4lab.recipes import registry
from fp4lab.recipes.operands import LinearRecipe
from fp4lab.recipes.recipe import Recipe
from fp4lab.recipes.view import LABELS
from fp4lab.specs.plain import Plain, from_plain, to_plain

_NONE: Mapping[str, BlockFormat] = {}
#: what is registered when the package is imported, before a user can add to it
_SHIPPED = {name: formats.get(name) for name in formats.names()}


def digest(recipe: Recipe) -> str:
    """SHA-256 (hex) of a recipe's canonical JSON without its labels and names of formats.

    Fields at their defaults are left out of the text, so a new field keeps old hashes valid.
    """
    numerics = _without_labels(to_plain(recipe))
    text = json.dumps(numerics, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _without_labels(data: Plain) -> Plain:
    if isinstance(data, dict):
        return {k: _without_labels(v) for k, v in data.items() if k not in LABELS}
    return [_without_labels(item) for item in data] if isinstance(data, list) else data


def to_dict(recipe: Recipe) -> dict[str, Plain]:
    """Plain data for a recipe."""
    return cast(dict[str, Plain], to_plain(recipe, name_of=_name_of))


def from_dict(data: Mapping[str, object]) -> Recipe:
    """The recipe that `to_dict` wrote; InputError with the path of the first wrong value."""
    declared: dict[str, BlockFormat] = {}
    if isinstance(data, Mapping) and "formats" in data:
        declared = _declared(data["formats"])
        data = {key: value for key, value in data.items() if key != "formats"}

    def by_name(kind: type, name: str) -> object:
        return _by_name(kind, name, declared)

    return from_plain(Recipe, data, path="recipe", by_name=by_name)


def _declared(data: object) -> dict[str, BlockFormat]:
    """The formats of a file by name; one name for two formats is an InputError."""
    found = from_plain(tuple[BlockFormat, ...], data, path="formats", by_name=_by_name)
    declared: dict[str, BlockFormat] = {}
    for number, fmt in enumerate(found):
        what = f"formats[{number}].name={fmt.name!r}"
        if not fmt.name.isidentifier():
            raise InputError(f"{what} may hold letters, digits and _; change it")
        known = {name: formats.get(name) for name in formats.names()} | declared
        # the name of a recipe would stand for that, not for the format
        if known.get(fmt.name, fmt) != fmt or fmt.name in {*registry.names()} - {*known}:
            raise InputError(f"{what} is taken; choose another name")
        declared[fmt.name] = fmt
    return declared


def from_toml(text: str) -> Recipe:
    """The recipe in a TOML text."""
    try:
        return from_dict(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"recipe is not valid TOML: {error}") from None


def from_json(text: str) -> Recipe:
    """The recipe in a JSON text."""
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"recipe is not valid JSON: {error}") from None
    return from_dict(data)


def read(path: str | Path) -> Recipe:
    """The recipe in a .toml or .json file.

    Raises:
        InputError: another suffix, no such file, or what is wrong in the file.
        OSError: the file cannot be read.

    >>> from fp4lab import recipes
    >>> _ = Path("mine.toml").write_text(recipes.get("nvfp4").to_toml(), encoding="utf-8")
    >>> read("mine.toml") == recipes.get("nvfp4")
    True
    """
    path = Path(path)
    readers = {".toml": from_toml, ".json": from_json}
    if path.suffix not in readers:
        raise InputError(f"path={str(path)!r} of a recipe should end in .toml or .json")
    try:
        return readers[path.suffix](path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"path={str(path)!r} of a recipe does not exist; correct it, or give the name of a "
            "recipe, as recipes.names() lists them"
        ) from None
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None


def find(recipe: Recipe | str) -> Recipe:
    """A recipe itself, or by its name, or from a file whose name ends in .toml or .json.

    Raises:
        InputError: an unknown name, what is wrong in the file, or something else than a recipe.
        OSError: the file cannot be read.

    >>> find("nvfp4") == find(registry.get("nvfp4"))
    True
    """
    if isinstance(recipe, str):
        return read(recipe) if recipe.endswith((".toml", ".json")) else registry.get(recipe)
    expect("recipe", recipe, Recipe, "use fp4lab.recipes.get(name), or the name alone")
    return recipe


def _name_of(value: object) -> str | None:
    if isinstance(value, BlockFormat) and _SHIPPED.get(value.name) == value:
        return value.name
    if isinstance(value, ElementType) and ELEMENTS.get(value.name) == value:
        return value.name
    if isinstance(value, LinearRecipe):
        fmt = value.fprop.a.format
        name = None if fmt is None else _name_of(fmt)
        # written by name only where that is the format too: a recipe may be published anew
        if name is None or value != LinearRecipe.uniform(formats.get(name)):
            return None
        return name if registry.get(name).linear == value else None
    return None


def _by_name(kind: type, name: str, declared: Mapping[str, BlockFormat] = _NONE) -> object:
    if kind is BlockFormat:
        return declared[name] if name in declared else formats.get(name)
    if kind is Recipe:
        return registry.made(name, declared)
    if kind is LinearRecipe:
        return registry.made(name, declared).linear
    if kind is ElementType:
        return formats.get_element(name)
    raise InputError(f"{name!r} stands where a table with the fields of {kind.__name__} should")
