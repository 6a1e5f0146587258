"""Recipes for people: the operand x product table, and what differs between two recipes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from enum import Enum
from html import escape
from typing import TYPE_CHECKING

from fp4lab import formats
from fp4lab.formats import BlockFormat, Hadamard
from fp4lab.recipes.operands import Gemm, LinearRecipe
from fp4lab.recipes.places import GEMMS
from fp4lab.recipes.tables import html_table, text_table
from fp4lab.specs.plain import label, to_plain

if TYPE_CHECKING:
    from fp4lab.recipes.recipe import Recipe

#: fields that decide no number
LABELS = frozenset({"name", "provenance", "optional"})


def short(linear: LinearRecipe | None) -> str:
    """One phrase for a layer's numerics."""
    if linear is None:
        return "left alone"
    distinct = {str(operand) for operand in linear.operands().values()}
    if len(distinct) == 1:
        return f"{distinct.pop()} everywhere"
    gemms: dict[str, Gemm] = {name: getattr(linear, name) for name in GEMMS}
    return "; ".join(f"{name} {gemm.a} x {gemm.b}" for name, gemm in gemms.items())


def text(recipe: Recipe) -> str:
    """The recipe as plain text."""
    lines = [f"recipe {recipe.name} ({recipe.hash[:12]})"]
    default = _default(recipe)
    if default is not None:
        lines.append(text_table(*default.table()))
    return "\n".join([*lines, *_notes(recipe)])


def html(recipe: Recipe) -> str:
    """The recipe as HTML."""
    head = f"<p><b>{escape(recipe.name)}</b> <code>{recipe.hash[:12]}</code></p>"
    default = _default(recipe)
    table = html_table(*default.table()) if default is not None else ""
    notes = "".join(f"<li>{escape(note.strip())}</li>" for note in _notes(recipe))
    return f"{head}{table}<ul>{notes}</ul>"


def _default(recipe: Recipe) -> LinearRecipe | None:
    forward = recipe.fprop_from.linear if recipe.fprop_from is not None else recipe.linear
    if recipe.linear is None or forward is None:
        return None
    return forward.with_backward_of(recipe.linear)


def _notes(recipe: Recipe) -> Iterator[str]:
    default = _default(recipe)
    if default is not None and default.weights_differ:
        yield "  W is rounded anew in dgrad, along another axis: other values than in fprop"
    for rule in recipe.rules:
        optional = " (if there are any)" if rule.optional else ""
        yield f"  layers {rule}{optional}: {short(rule.use)}"
    if recipe.fprop_from is not None:
        yield f"  fprop of every layer as in {recipe.fprop_from.name}"
    for switch in recipe.schedule:
        at = "learning-rate decay" if switch.at == "decay" else f"step {switch.at}"
        yield f"  from {at}: {switch.part} as in {switch.to.name}"


def diff(old: Recipe, new: Recipe) -> str:
    """The leaves that differ, one line each, or "no numeric difference"."""
    if old.hash == new.hash:
        return "no numeric difference"
    before, after = dict(_leaves(old, "")), dict(_leaves(new, ""))
    lines = [f"{old.name} -> {new.name}"]
    for path in dict.fromkeys([*before, *after]):
        if before.get(path) != after.get(path):
            lines.append(f"  {path}: {before.get(path, '-')} -> {after.get(path, '-')}")
    return "\n".join(lines)


def _leaves(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, BlockFormat):
        yield path, _format(value)
    elif isinstance(value, Hadamard):
        yield path, _hadamard(value)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if field.name not in LABELS:
                inner = f"{path}.{field.name}" if path else field.name
                yield from _leaves(getattr(value, field.name), inner)
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{path}[{i}]")
    elif value is None:
        yield path, "none"
    else:
        yield path, label(value) if isinstance(value, Enum) else str(value)


def _format(fmt: BlockFormat) -> str:
    known = fmt.name in formats.names() and formats.get(fmt.name) == fmt
    return fmt.name if known else f"{fmt.name} {json.dumps(to_plain(fmt))}"


def _hadamard(hadamard: Hadamard) -> str:
    signs = hadamard.signs
    if isinstance(signs, tuple):
        return f"{hadamard.size}, signs " + "".join("+" if sign > 0 else "-" for sign in signs)
    return f"{hadamard.size}, " + ("no signs" if signs is None else f"signs of seed {signs}")
