"""How formats differ, in words: every answer is read off the fields of a format.

The letters are those of `fp4lab.formats.scaling`. `differences` compares a format with Transformer
Engine's of the same kind.
"""

from __future__ import annotations

from collections.abc import Callable

from fp4lab import formats as f
from fp4lab.formats import BlockFormat, BlockScale, Direction, Level, Selection, Ties, Zeros


def zero_block(fmt: BlockFormat) -> str:
    """The scale byte of a block of zeros beside others: hexadecimal, or the float32 itself.

    >>> [zero_block(f.get(name)) for name in ("nvfp4", "nvfp4_modelopt", "mxfp4")]
    ['0x00', '0x38', '0x00']
    """
    assert fmt.scale is not None
    value = fmt.zero_scale or fmt.scale_floor
    if fmt.scale.mantissa_bits == 23:
        return f"{value:g}"
    # a type without zero begins with its smallest number
    codes = fmt.scale.values()[: fmt.scale.max_code + 1]
    return f"0x{codes.index(value) if fmt.scale.has_zero else 0:02X}"


def zero_tensor(fmt: BlockFormat) -> str:
    """That of a tensor of zeros: NaN where the tool divides by its decode scale 0."""
    return "NaN" if fmt.direction == Direction.DECODE else "as of a block"


def smallest_scale(fmt: BlockFormat) -> str:
    """The smallest block scale of a block that is not all zeros, as a power of two, or 0."""
    assert fmt.scale is not None
    if fmt.scale.mantissa_bits == 23:
        return "any"
    value = 2.0**fmt.scale.min_exponent if not fmt.scale.has_zero else fmt.scale_floor
    if fmt.block_scale == BlockScale.COMPRESSED_TENSORS:
        # what rounds to 0 becomes another number
        value = fmt.scale.min_subnormal
    return f"2^{value.hex().partition('p')[2]}" if value else "0"


def negative_zero(fmt: BlockFormat) -> str:
    """The E2M1 codes (the sign bit of others) of -0, of +0, and of a small negative number."""
    kept = {Zeros.POSITIVE: "0 0 0", Zeros.NEGATIVE: "8 8 8"}.get(fmt.zeros)
    return kept or ("8 0 8" if fmt.keep_negative_zero else "0 0 8")


def decoded_zero(fmt: BlockFormat) -> str:
    """What the code of -0 stands for."""
    return "+0" if fmt.zeros in (Zeros.POSITIVE, Zeros.DECODED_POSITIVE) else "-0"


_ORDERS = {
    BlockScale.FOLDED: "s = round(a (S / M)), x (1 / (s D))",
    BlockScale.DIVIDED: "s = round((a / M) S), x (1 / (s D))",
    BlockScale.POWER_OF_TWO: "s = 2^k by {rule}, x / s",
    BlockScale.ENCODE: "e = M / a, s = 1 / e, x e",
    BlockScale.TORCHAO: "s = round((a / M) / D), x ((1 / D) / s)",
    BlockScale.MODELOPT: "s = round(a / (M D)), x / (s D)",
    BlockScale.COMPRESSED_TENSORS: "s = round(S (a / M)), x / (s / S)",
    BlockScale.FOUROVERSIX: "s = round((a / M) S), x (1 / (D s)), no limits",
    BlockScale.GGML: "s = round(a / M) in its own way, the code of the least error",
    BlockScale.QWANTIZE: "s = round(a / M), x / s",
}
_HALVES = {Ties.EVEN: "to even", Ties.AWAY: "away from zero", Ties.ZERO: "to zero"}
_STORES = {
    Direction.AMAX: "amax",
    Direction.ENCODE: "C M / amax (encode)",
    Direction.DECODE: "amax / (C M) (decode)",
}
_CHOICES = {
    Selection.NONE: "of the block's amax",
    Selection.MAE: "4 or 6 by absolute errors",
    Selection.MSE: "4 or 6 by squared errors",
    Selection.ABS_MAX: "4 or 6 by the largest error",
    Selection.SEARCH: "of all, by squared errors",
}


def order(fmt: BlockFormat) -> str:
    """The order of operations, with the letters of `fp4lab.formats.scaling`."""
    return _ORDERS[fmt.block_scale].format(rule=fmt.scale_rule.name)


def second_level(fmt: BlockFormat) -> str:
    """Which number the second level stores."""
    return "none" if fmt.level == Level.NONE else _STORES[fmt.direction]


def choice(fmt: BlockFormat) -> str:
    """Which of several scales a block gets."""
    return _CHOICES[fmt.selection]


def halves(fmt: BlockFormat) -> str:
    """Where an element halfway between two codes goes."""
    return _HALVES[fmt.ties]


def aim(fmt: BlockFormat) -> str:
    """C: the block scale that the tensor's amax maps to."""
    return "-" if fmt.level == Level.NONE else f"{fmt.cap:g}"


def target(fmt: BlockFormat) -> str:
    """M: the element that a block's amax maps to."""
    return f"{fmt.target:g}"


_QUESTIONS: dict[str, Callable[[BlockFormat], str]] = {
    "second level": second_level,
    "order": order,
    "scale": choice,
    "C": aim,
    "M": target,
    "scales are computed in": lambda fmt: fmt.scale_precision.name,
    "scale byte of a block of zeros": zero_block,
    "scale byte of a tensor of zeros": zero_tensor,
    "smallest scale": smallest_scale,
    "halves go": halves,
    "codes of -0, 0, a small negative number": negative_zero,
    "the code of -0 is": decoded_zero,
}


def _base(fmt: BlockFormat) -> BlockFormat:
    """Transformer Engine's format of the same kind."""
    if fmt.block_scale == BlockScale.POWER_OF_TWO:
        return f.MXFP4 if fmt.element == f.E2M1 else f.MXFP8_E4M3
    return fmt if fmt.block_scale == BlockScale.ENCODE else f.NVFP4


def differences(fmt: BlockFormat) -> tuple[str, ...]:
    """What a format does otherwise than Transformer Engine's of the same kind.

    >>> differences(f.get("mxfp8_e4m3_floor"))
    ('order: s = 2^k by FLOOR, x / s',)
    """
    base = _base(fmt)
    answers = {name: (ask(fmt), ask(base)) for name, ask in _QUESTIONS.items()}
    # what has no second level has no C either
    new = {name: mine for name, (mine, theirs) in answers.items() if mine not in (theirs, "-")}
    if new.get("second level") == "none":
        return ("no second level", *(f"{k}: {v}" for k, v in new.items() if k != "second level"))
    return tuple(f"{name}: {mine}" for name, mine in new.items())
