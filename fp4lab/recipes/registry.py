"""Recipes by name, for the command line and for files.

    name = base [_first<k>] [_last<k>] { (-|+) technique [. where] }

`nvfp4_last2-rht` is the recipe `nvfp4` with the last two blocks in BF16 and no Hadamard transforms:
the same names that `keep_high_precision`, `without` and `with_` give their results. A base is a
registered recipe, or else a format: then every operand is in it, to nearest, but the output head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fp4lab import formats
from fp4lab.errors import InputError, expect, unknown
from fp4lab.formats import BlockFormat
from fp4lab.recipes.operands import LinearRecipe
from fp4lab.recipes.recipe import Recipe
from fp4lab.recipes.rules import HEAD_IN_BF16

_RECIPES: dict[str, Recipe] = {}
_BASE = re.compile(r"[a-z][a-z0-9_]*")
_BLOCKS = re.compile(r"(?P<base>.+?)(?:_first(?P<first>\d+))?(?:_last(?P<last>\d+))?")


def register(recipe: Recipe) -> Recipe:
    """Makes a recipe known by its name.

    Raises:
        InputError: a name with other characters than a-z, 0-9 and _, or one that is taken by a
            different recipe.

    >>> mine = register(Recipe(name="mine", linear=get("nvfp4-rht").linear))
    >>> get("mine_last2-sr").name
    'mine_last2-sr'
    """
    expect("recipe", recipe, Recipe, "give a Recipe")
    if not _BASE.fullmatch(recipe.name):
        raise InputError(f"name={recipe.name!r} of a recipe to register may hold a-z, 0-9 and _")
    if _RECIPES.setdefault(recipe.name, recipe) != recipe:
        raise InputError(f"name={recipe.name!r} is taken by another recipe; choose another name")
    return recipe


def names() -> list[str]:
    """Names of all registered recipes, sorted; `get` makes more from them.

    >>> "nvfp4_last4" in names(), "nvfp4-rht" in names()
    (True, False)
    """
    return sorted(_RECIPES)


def get(name: str) -> Recipe:
    """The recipe of a name, made from a registered one as the name's suffixes say.

    `base[_first<k>][_last<k>]`, then any of `-technique[.where]` and `+technique[.where]`. A base
    is one of `names()`, or a format. Techniques: `rht` (`rht32` to add that size), `signs`, `sr`,
    `2d`, `reuse`, `quantization`. Where: `fprop`, `dgrad`, `wgrad`, `forward`, `backward`, `x`,
    `w`, `dy`.

    Raises:
        InputError: an unknown base, technique or place, with the nearest known one.

    >>> get("nvfp4_base+sr.dgrad").linear.dgrad.a.rounding
    <Rounding.STOCHASTIC_8: 'stochastic8'>
    >>> print(get("mxfp6_e2m3"))  # doctest: +ELLIPSIS
    recipe mxfp6_e2m3 (...)
        fprop       dgrad       wgrad (along tokens)
    --  ----------  ----------  --------------------
    X   mxfp6_e2m3  -           mxfp6_e2m3
    W   mxfp6_e2m3  mxfp6_e2m3  -
    dY  -           mxfp6_e2m3  mxfp6_e2m3
      W is rounded anew in dgrad, along another axis: other values than in fprop
      layers 'head|*.head|*_head|output|embed_out|*.embed_out' (if there are any): bf16 everywhere
    """
    return made(name, {})


def made(name: str, declared: Mapping[str, BlockFormat]) -> Recipe:
    """`get`, where these formats count as registered ones do."""
    expect("name", name, str, "give the name of a recipe, such as 'nvfp4'")
    if name.endswith(".toml"):
        raise InputError(f"name={name!r} is a file; read it by fp4lab.recipes.read(path)")
    base, *changes = re.split(r"(?=[-+])", name)
    recipe = _with_blocks(base, declared)
    for change in changes:
        technique, _, where = change[1:].partition(".")
        apply = recipe.without if change[0] == "-" else recipe.with_
        recipe = apply(technique, where=where or None)
    return recipe


def _base(name: str, declared: Mapping[str, BlockFormat]) -> Recipe | None:
    if name in _RECIPES:
        return _RECIPES[name]
    if name not in declared and name not in formats.names():
        return None
    fmt = declared[name] if name in declared else formats.get(name)
    return Recipe(name=name, linear=LinearRecipe.uniform(fmt), rules=(HEAD_IN_BF16,))


def _with_blocks(name: str, declared: Mapping[str, BlockFormat]) -> Recipe:
    if (recipe := _base(name, declared)) is not None:
        return recipe
    match = _BLOCKS.fullmatch(name)
    recipe = None if match is None else _base(match["base"], declared)
    if match is None or recipe is None:
        known = {*_RECIPES, *formats.names(), *declared}
        cure = f"{', '.join(names())}, or a format's name"
        raise unknown("recipe", name, known, shown=cure)
    first, last = (int(match[end] or 0) for end in ("first", "last"))
    return recipe.keep_high_precision(first=first, last=last)
