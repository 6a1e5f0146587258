"""Techniques that can be taken out of a layer's numerics or put in, one at a time.

    rht            Hadamard transforms; "rht32" adds them with size 32
    signs          the sign vector of the Hadamard transforms
    sr             stochastic rounding (added with 8 bits, as the hardware)
    2d             scales per n x n block instead of 1 x n, reused by the backward product
    reuse          the backward product takes the numbers that fprop multiplied
    quantization   the formats themselves: without it an operand is BF16

Each acts in a place: a product (`fprop`, `dgrad`, `wgrad`), a pass (`forward`, `backward`), a
tensor (`x`, `w`, `dy`), or everywhere. The ablations of arXiv 2509.25149 (figures 4, 8, 10, 11, 12,
14) are a few of these each. Not expressible: figure 13's new signs for every single transform.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from fp4lab import formats
from fp4lab.errors import InputError, unknown
from fp4lab.formats import NVFP4_SIGNS, WHOLE, BlockFormat, Hadamard, Rounding
from fp4lab.recipes.operands import LinearRecipe, Operand, Source
from fp4lab.recipes.places import PLACES, Place

TECHNIQUES = ("rht", "signs", "sr", "2d", "reuse", "quantization")
WHERE = ("fprop", "dgrad", "wgrad", "forward", "backward", "x", "w", "dy")
#: where a technique is added when no place is given: where the NVFP4 paper uses it
_USUAL_PLACE = {"rht": "wgrad", "signs": "wgrad", "sr": "dy", "2d": "w", "reuse": "w"}


def remove(linear: LinearRecipe, technique: str, *, where: str | None = None) -> LinearRecipe:
    """The numerics without a technique; the same where it is not used.

    Without `2d` and without `reuse` a backward operand is quantized from high precision along its
    own axis (Transformer Engine's `disable_2d_quantization`). Without `quantization` in fprop, the
    backward operands that reuse its copy stay as they were, now made from high precision.

    Raises:
        InputError: an unknown technique or place, or a result that has no meaning.

    >>> from fp4lab import recipes
    >>> print(remove(recipes.get("nvfp4").linear, "rht").wgrad.a)
    nvfp4 SR8
    """
    if re.fullmatch(r"rht\d+", technique):
        raise InputError(f"technique={technique!r} has a size; leave transforms out by 'rht'")
    if technique not in TECHNIQUES:
        raise unknown("technique", technique, TECHNIQUES)
    places = _places(where)
    if technique in ("rht", "signs"):
        places = _both_sides(places)
    changed = linear.operands()
    if technique == "quantization":
        changed.update(_detached(linear, places))
    changed.update({place: _removed(linear, place, technique) for place in places})
    if technique == "quantization":
        changed = _without_idle_hadamard(changed)
    return LinearRecipe.from_operands(changed)


def _removed(linear: LinearRecipe, place: Place, technique: str) -> Operand:
    operand = linear.operand(place)
    if technique == "rht":
        return replace(operand, hadamard=None)
    if technique == "signs":
        return _signed(operand, with_signs=False)
    if technique == "sr":
        return replace(operand, rounding=Rounding.NEAREST)
    if technique == "quantization":
        return Operand(format=formats.BF16, hadamard=operand.hadamard)
    own = operand
    if place.forward is not None and _reuses(operand):
        own = replace(linear.operand(place.forward), hadamard=operand.hadamard)
    if technique == "reuse":
        return replace(own, source=Source.HIGH_PRECISION)
    fmt = _reshaped(own.format, two_dimensional=False)
    return operand if fmt is None else replace(own, format=fmt)


def add(linear: LinearRecipe, technique: str, *, where: str | None = None) -> LinearRecipe:
    """The numerics with a technique; the same where it is used already.

    The usual place is the NVFP4 paper's: wgrad for `rht` and `signs`, dY for `sr`, W for `2d` and
    `reuse`. Hadamard transforms of size 16 get Transformer Engine's signs, others signs drawn from
    seed 0. Stochastic rounding or a transform of a reused operand quantizes it anew, from high
    precision.

    Raises:
        InputError: an unknown technique or place, or a result that has no meaning.

    >>> from fp4lab import recipes
    >>> print(add(recipes.get("nvfp4_base").linear, "rht32", where="fprop").fprop.a)
    nvfp4 RHT32
    """
    sized = re.fullmatch(r"rht(\d+)", technique)
    size, technique = (int(sized[1]), "rht") if sized else (16, technique)
    if technique == "quantization":
        raise InputError(
            "technique='quantization' can only be left out; begin with a recipe that quantizes"
        )
    if technique not in _USUAL_PLACE:
        raise unknown("technique", technique, _USUAL_PLACE)
    places = _places(where or _USUAL_PLACE[technique])
    if technique in ("rht", "signs"):
        places = _both_sides(places)
    changed = linear.operands()
    for place in places:  # fprop comes first: the backward products may reuse what it becomes
        operand = changed[place]
        forward = None if place.forward is None else changed[place.forward]
        if technique == "rht":
            own = forward if forward is not None and _reuses(operand) else operand
            operand = replace(own, hadamard=Hadamard(size=size, signs=_signs(size)))
        elif technique == "signs":
            operand = _signed(operand, with_signs=True)
        else:
            added = {"sr": _stochastic, "2d": _two_dimensional, "reuse": _reused}[technique]
            operand = added(operand, forward)
        changed[place] = operand
    return LinearRecipe.from_operands(changed)


def _stochastic(operand: Operand, forward: Operand | None) -> Operand:
    if forward is not None and _reuses(operand):
        if forward.rounding != Rounding.NEAREST:
            return operand
        operand = forward
    return replace(operand, rounding=Rounding.STOCHASTIC_8) if operand.is_quantized else operand


def _two_dimensional(operand: Operand, forward: Operand | None) -> Operand:
    fmt = _reshaped(operand.format, two_dimensional=True)
    if fmt is None:
        return operand
    square = replace(operand, format=fmt)
    return Operand(source=Source.FORWARD) if square == forward else square


def _reused(operand: Operand, forward: Operand | None) -> Operand:
    if forward is None:
        return operand
    return Operand(source=Source.FORWARD, hadamard=operand.hadamard)


def _reuses(operand: Operand) -> bool:
    return operand.source == Source.FORWARD and operand.format is None


def _places(where: str | None) -> list[Place]:
    if where is not None and where not in WHERE:
        raise unknown("where", where, WHERE)
    gemms = {"forward": ("fprop",), "backward": ("dgrad", "wgrad")}.get(where or "", (where,))
    return [
        place for place in PLACES if where is None or place.gemm in gemms or place.tensor == where
    ]


def _both_sides(places: list[Place]) -> list[Place]:
    gemms = {place.gemm for place in places}
    return [place for place in PLACES if place.gemm in gemms]


def _detached(linear: LinearRecipe, places: list[Place]) -> dict[Place, Operand]:
    """Operands outside `places` that reuse a copy which fprop will no longer make."""
    return {
        place: linear.detached(place)
        for place in PLACES
        if place.forward in places and place not in places
    }


def _without_idle_hadamard(operands: Mapping[Place, Operand]) -> dict[Place, Operand]:
    """Drops transforms from products in which nothing is quantized any more."""
    busy = {
        place.gemm
        for place, op in operands.items()
        if op.is_quantized or op.source == Source.FORWARD
    }
    return {
        place: op if place.gemm in busy else replace(op, hadamard=None)
        for place, op in operands.items()
    }


def _signs(size: int) -> tuple[int, ...] | int:
    return NVFP4_SIGNS if size == len(NVFP4_SIGNS) else 0


def _signed(operand: Operand, *, with_signs: bool) -> Operand:
    if operand.hadamard is None:
        return operand
    signs = _signs(operand.hadamard.size) if with_signs else None
    return replace(operand, hadamard=replace(operand.hadamard, signs=signs))


def _reshaped(fmt: BlockFormat | None, *, two_dimensional: bool) -> BlockFormat | None:
    """The format with n x n instead of 1 x n blocks or the reverse; None where it has no such."""
    if fmt is None or fmt.block is None or fmt.block[1] in (WHOLE, 1):
        return None
    rows, columns = fmt.block
    if (rows == 1) != two_dimensional or rows == WHOLE:
        return None
    block = (columns, columns) if two_dimensional else (1, columns)
    for name in formats.names():
        known = formats.get(name)
        if known == fmt.replace(name=name, block=block):
            return known
    return fmt.replace(name=f"{fmt.name}_{block[0]}x{block[1]}", block=block)
