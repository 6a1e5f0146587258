"""Block formats: elements that share scales.

A block format says what a *tensor* becomes: an element type, the tile that shares one block scale,
how that scale is stored and computed, and whether a second scale covers the tensor or each row.
Everything numeric in which published tools differ is a field, so that no default hides a choice.
`scaling.py` states the arithmetic.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fp4lab.errors import InputError, expect
from fp4lab.formats.elements import E4M3, FP32, UE4M3, ElementType, compute_properties
from fp4lab.formats.rounding import Overflow, Ties, Zeros
from fp4lab.formats.scaling import BlockScale, Direction, Level, ScaleRule, Selection
from fp4lab.specs.plain import repr_without_defaults

#: as a side of `block`: the whole extent of the tensor
WHOLE = 0
LARGEST_SIDE = 1 << 20
#: the fields that mean nothing without block scales
_OF_SCALES = ("scale_rule", "block_scale", "level", "scale_ties", "selection", "zeros")
_SCALES = ("scale_cap", "amax_target", "scale_floor", "zero_scale")
_DIRECTIONS = {
    BlockScale.TORCHAO: Direction.DECODE,
    BlockScale.MODELOPT: Direction.DECODE,
    BlockScale.COMPRESSED_TENSORS: Direction.ENCODE,
}
#: the orders that know a type of their own for amax/M
_WITH_PRECISION = (BlockScale.DIVIDED, BlockScale.COMPRESSED_TENSORS)
_GGML_SCALES = (E4M3.definition, UE4M3.definition)
_ONE_LEVEL = (BlockScale.GGML, BlockScale.QWANTIZE)
_WITH_SELECTION = {
    Selection.MAE: (BlockScale.DIVIDED, BlockScale.FOUROVERSIX),
    Selection.MSE: (BlockScale.DIVIDED, BlockScale.FOUROVERSIX),
    Selection.ABS_MAX: (BlockScale.DIVIDED, BlockScale.FOUROVERSIX),
    Selection.SEARCH: (BlockScale.QWANTIZE,),
}


@dataclass(frozen=True, kw_only=True)
class BlockFormat:
    """A quantized tensor format; declare one, and it works everywhere a format is taken.

    Args:
        name: key in tables, files and messages.
        element: type of one number.
        block: rows x columns that share a scale, `WHOLE` for the full extent; None = no scale, the
            format is a plain cast to `element`.
        scale: stored type of the block scale; `FP32` is stored as float32, others as bytes.
        scale_rule: how amax/M is rounded to `scale`.
        block_scale: order of the arithmetic; FOLDED, DIVIDED or that of another tool for scales
            like E4M3, POWER_OF_TWO for E8M0, ENCODE for FP32. It also decides which number the
            second level stores (`direction`).
        level: second-level scale: none, one per tensor, one per row.
        scale_cap: the largest block scale that the second level aims at (448; 256 leaves room for
            4-over-6); 0 means the scale type's largest value.
        amax_target: the element value that a block's amax is mapped to (`M` above); 0 means the
            largest element. A smaller one leaves room, so that a scale rounded down clips nothing
            (16/17 of 6 for unbiased stochastic NVFP4); a larger one clips the largest values.
        scale_floor: stored block scales are at least this (0: they may underflow to 0, and the
            block decodes to 0).
        zero_scale: stored scale of an all-zero block.
        scale_ties: tie rule of the block scale's round-to-nearest (ggml: AWAY).
        scale_precision: type in which amax/M is computed before it meets S, with DIVIDED, and S too
            with COMPRESSED_TENSORS (that tool: the tensor's, BF16 for a BF16 one).
        ties: tie rule of the elements' round-to-nearest.
        overflow: what elements beyond the largest become (scaled formats: they saturate).
        selection: which error decides between two scales (4-over-6) or all of them, or NONE.
        keep_negative_zero: whether an input -0 keeps its sign bit (Transformer Engine: no). Small
            negative values that round to zero keep it.
        zeros: what other signs of zeros there are.

    Raises:
        InputError: a combination that has no meaning, named with its cure.

    >>> from fp4lab.formats import E2M1, E4M3
    >>> mine = BlockFormat(name="nvfp4_1x32", element=E2M1, block=(1, 32), scale=E4M3,
    ...                    level=Level.TENSOR)
    >>> round(mine.bits_per_value(), 2)
    4.25
    """

    name: str
    element: ElementType
    block: tuple[int, int] | None = None
    scale: ElementType | None = None
    scale_rule: ScaleRule = ScaleRule.NEAREST
    block_scale: BlockScale = BlockScale.FOLDED
    level: Level = Level.NONE
    scale_cap: float = 0.0
    amax_target: float = 0.0
    scale_floor: float = 0.0
    zero_scale: float = 0.0
    scale_ties: Ties = Ties.EVEN
    scale_precision: ElementType = FP32
    ties: Ties = Ties.EVEN
    overflow: Overflow = Overflow.SATURATE
    selection: Selection = Selection.NONE
    keep_negative_zero: bool = False
    zeros: Zeros = Zeros.SIGNED

    def __post_init__(self) -> None:
        self._check_types()
        self._validate()
        for field in _SCALES:
            # 256 and 256.0, 0.0 and -0.0 are one format, and so have one hash
            object.__setattr__(self, field, float(getattr(self, field)) + 0.0)
        compute_properties(self)

    def _check_types(self) -> None:
        expect("name", self.name, str, "give the format a name in text")
        cure = f"use one of fp4lab.formats, in {self.name!r}"
        for field in ("element", "scale", "scale_precision"):
            value = getattr(self, field)
            expect(field, value, ElementType, cure, optional=field == "scale")
        for field, kind in (
            ("scale_rule", ScaleRule),
            ("block_scale", BlockScale),
            ("level", Level),
            ("scale_ties", Ties),
            ("ties", Ties),
            ("overflow", Overflow),
            ("selection", Selection),
            ("zeros", Zeros),
        ):
            expect(field, getattr(self, field), kind, cure)
        expect("keep_negative_zero", self.keep_negative_zero, bool, f"of {self.name!r}: a bool")

    def _validate(self) -> None:
        if not self.element.signed or not self.element.has_zero or self.element.bits > 16:
            raise InputError(
                f"element={self.element.name!r} of {self.name!r} cannot hold negative values, zero "
                "or a code of 16 bits; it is for scales, choose another element"
            )
        if self.block is not None and not (
            isinstance(self.block, tuple)
            and len(self.block) == 2
            and all(type(side) is int for side in self.block)
        ):
            raise InputError(
                f"block={self.block!r} of {self.name!r} is not (rows, columns), such as (1, 16)"
            )
        if (self.block is None) != (self.scale is None):
            raise InputError(
                f"block={self.block} with scale={self.scale and self.scale.name!r} in format "
                f"{self.name!r}: give both (scaled) or neither (plain cast)"
            )
        for field in _SCALES:
            value = getattr(self, field)
            real = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not real or (value != 0 and not 2.0**-126 <= value <= FP32.max_value):
                raise InputError(
                    f"{field}={value!r} of {self.name!r} is neither 0 nor a finite scale from "
                    "2^-126 to float32's largest"
                )
        if self.scale_precision.mantissa_bits != 23 and self.block_scale not in _WITH_PRECISION:
            raise InputError(
                f"scale_precision={self.scale_precision.name!r} of {self.name!r} needs DIVIDED or "
                "COMPRESSED_TENSORS block scales"
            )
        if self.block is not None and self.scale is not None:
            self._check_scale(self.scale)
            self._check_arithmetic(self.scale)
            self._check_level(*self.block)
            return
        for name in _OF_SCALES + _SCALES:
            value = getattr(self, name)
            # defaults of fields are attributes of the class
            if value != getattr(BlockFormat, name):
                shown = getattr(value, "name", value)
                raise InputError(
                    f"{name}={shown} of {self.name!r} needs a block scale; set block and "
                    "scale, or leave it out"
                )

    def _check_scale(self, scale: ElementType) -> None:
        if (self.block_scale == BlockScale.POWER_OF_TWO) == scale.has_zero:
            raise InputError(
                f"scale={scale.name!r} of {self.name!r} with block_scale={self.block_scale.name}: "
                "E8M0 (a type without zero) goes with POWER_OF_TWO, other types with the others"
            )
        if self.block_scale == BlockScale.ENCODE and scale.mantissa_bits != 23:
            raise InputError(f"scale={scale.name!r} of {self.name!r}: ENCODE stores FP32")
        if self.block_scale == BlockScale.GGML and scale.definition not in _GGML_SCALES:
            raise InputError(f"scale={scale.name!r} of {self.name!r}: GGML rounds to E4M3 or UE4M3")
        if self.block_scale == BlockScale.GGML and (
            self.ties != Ties.ZERO or self.zeros != Zeros.POSITIVE or self.element.bits > 4
        ):
            raise InputError(
                f"block_scale=GGML of {self.name!r} tries codes of 4 bits one by one; it needs "
                "ties=ZERO and zeros=POSITIVE"
            )
        if self.selection == Selection.SEARCH and scale.bits > 8:
            raise InputError(
                f"scale={scale.name!r} of {self.name!r} has too many values to try; use 8 bits"
            )
        rules = {
            BlockScale.POWER_OF_TWO: tuple(ScaleRule),
            BlockScale.ENCODE: (ScaleRule.NEAREST, ScaleRule.ROUND_UP),
        }.get(self.block_scale, (ScaleRule.NEAREST,))
        if self.scale_rule not in rules:
            raise InputError(
                f"scale_rule={self.scale_rule.name} of {self.name!r} with block_scale="
                f"{self.block_scale.name}: use {' or '.join(rule.name for rule in rules)}"
            )

    def _check_arithmetic(self, scale: ElementType) -> None:
        rounds = self.rounds_scale
        for field, value, default in (
            ("scale_ties", self.scale_ties.name, Ties.EVEN.name),
            ("level", self.level.name, Level.NONE.name),
            ("amax_target", self.amax_target, 0.0),
        ):
            if value != default and not rounds:
                raise InputError(
                    f"{field}={value} of {self.name!r} needs block scales that are rounded, as "
                    "FOLDED or DIVIDED"
                )
        replaces = rounds and self.block_scale != BlockScale.GGML
        for field, does in (
            ("scale_cap", rounds),
            ("scale_floor", replaces),
            ("zero_scale", replaces or self.block_scale == BlockScale.ENCODE),
        ):
            value = getattr(self, field)
            if value and not does:
                raise InputError(
                    f"{field}={value} of {self.name!r} does nothing with block_scale="
                    f"{self.block_scale.name}; leave it at 0"
                )
            stored = scale.bits <= 16 and field != "scale_cap"
            if value and stored and not scale.holds(value):
                raise InputError(
                    f"{field}={value} of {self.name!r} is no value of its scale type "
                    f"{scale.name!r}; choose one that is"
                )
        if 0 < self.amax_target < self.element.min_subnormal:
            raise InputError(
                f"amax_target={self.amax_target} of {self.name!r} is below the smallest element "
                f"{self.element.min_subnormal}; choose one near {self.element.max_value}"
            )

    def _check_level(self, rows: int, columns: int) -> None:
        if not 0 <= min(rows, columns) <= max(rows, columns) <= LARGEST_SIDE:
            raise InputError(
                f"block={self.block} of {self.name!r} has a side outside [0, {LARGEST_SIDE}]; for "
                "the full extent of a tensor use WHOLE"
            )
        if self.amax_factor > FP32.max_value:
            raise InputError(
                f"scale of {self.name!r} is too wide for a second level to aim at its largest "
                f"value {self.cap:.3g}; set scale_cap"
            )
        if self.level == Level.ROW and rows != 1:
            raise InputError(
                f"block={self.block} of {self.name!r}: a second level per row needs blocks of 1 row"
            )
        if self.level != Level.NONE and self.block_scale in _ONE_LEVEL:
            raise InputError(
                f"level={self.level.name} of {self.name!r} with block_scale="
                f"{self.block_scale.name}, which has no second level; leave it out"
            )
        orders = _WITH_SELECTION.get(self.selection, tuple(BlockScale))
        if self.block_scale not in orders:
            raise InputError(
                f"selection={self.selection.name} of {self.name!r} needs block_scale="
                f"{' or '.join(order.name for order in orders)}"
            )
        if self.selection != Selection.NONE and (WHOLE in (rows, columns) or rows & (rows - 1)):
            raise InputError(
                f"block={self.block} of {self.name!r}: 4-over-6 adds errors row by row in halves; "
                "use a power of two of rows, and fixed sides"
            )

    __repr__ = repr_without_defaults

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # formats are keys of caches on the way to every operator
        fields = dataclasses.fields(self)
        return hash(tuple(getattr(self, field.name) for field in fields))

    @cached_property
    def rounds_scale(self) -> bool:
        """Whether block scales are rounded to their type, as those of two levels are."""
        return self.block_scale not in (BlockScale.POWER_OF_TWO, BlockScale.ENCODE)

    @cached_property
    def direction(self) -> Direction:
        """Which number the second level stores; AMAX where there is none."""
        if self.level == Level.NONE:
            return Direction.AMAX
        return _DIRECTIONS.get(self.block_scale, Direction.AMAX)

    @cached_property
    def cap(self) -> float:
        """The block scale that the second level maps the largest block to."""
        if self.scale_cap:
            return self.scale_cap
        return self.scale.max_value if self.scale is not None else 1.0

    @cached_property
    def amax_factor(self) -> float:
        """C * M: an amax divided by this is the second-level decode scale."""
        return self.cap * self.target if self.level != Level.NONE else 1.0

    @cached_property
    def epilogue_ratio(self) -> tuple[int, int]:
        """What divides a product with such a tensor, as a fraction: C * M of an amax, else 1.

        A fraction, for torch.compile(dynamic=True) makes a float a variable.
        """
        holds_amax = self.direction == Direction.AMAX
        return self.amax_factor.as_integer_ratio() if holds_amax else (1, 1)

    @cached_property
    def target(self) -> float:
        """The element value that a block's amax is mapped to."""
        return self.amax_target or self.element.max_value

    @cached_property
    def whole_rows(self) -> bool:
        """Whether one scale covers whole rows (or all), so that a GEMM can apply it at its end."""
        return self.block in ((WHOLE, WHOLE), (1, WHOLE)) and self.level == Level.NONE

    @cached_property
    def operand_fits_bf16(self) -> bool:
        """Whether element times block scale has at most bf16's 8 significant bits."""
        significant = self.element.mantissa_bits + 1
        if self.scale is not None and not self.whole_rows:
            power_of_two = self.scale_rule != ScaleRule.NEAREST or not self.scale.has_zero
            significant += 0 if power_of_two else self.scale.mantissa_bits + 1
        return significant <= 8

    @cached_property
    def packed(self) -> bool:
        """Whether two codes share a byte (4-bit elements; low nibble first)."""
        return self.element.bits == 4

    def bits_per_value(self, num_rows: int = 4096, num_columns: int = 4096) -> float:
        """Bits of one value in a num_rows x num_columns tensor as hardware stores it, with scales.

        A `QuantizedTensor` gives codes of other than 4 bits whole bytes.
        """
        if self.block is None or self.scale is None:
            return float(self.element.bits)
        rows, columns = (
            side or extent for side, extent in zip(self.block, (num_rows, num_columns), strict=True)
        )
        second = {Level.NONE: 0, Level.TENSOR: 1, Level.ROW: num_rows}[self.level]
        scale_bits = -(-self.scale.bits // 8) * 8
        return (
            self.element.bits
            + scale_bits / (rows * columns)
            + 32 * second / (num_rows * num_columns)
        )

    def replace(self, **changes: Any) -> BlockFormat:
        """A copy with some fields changed; give it a new `name` when it is to be registered."""
        return dataclasses.replace(self, **changes)

    @cached_property
    def definition(self) -> str:
        """All fields but the name, as text for operators (`from_definition` inverts it)."""
        return ";".join(_text(getattr(self, field.name)) for field in dataclasses.fields(self)[1:])

    @staticmethod
    def from_definition(text: str) -> BlockFormat:
        """Inverse of `definition`, without the names."""
        names = [field.name for field in dataclasses.fields(BlockFormat)[1:]]
        parts = zip(names, text.split(";"), strict=True)
        return BlockFormat(name="", **{name: _value(name, part) for name, part in parts})


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, ElementType):
        return value.definition
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return str(float(value) if isinstance(value, float) else int(value))


def _value(name: str, text: str) -> Any:
    """What `_text` was given, by the kind of the field's default."""
    if name in ("element", "scale", "scale_precision"):
        return ElementType.from_definition(text) if text else None
    if name == "block":
        return tuple(map(int, text.split("x"))) if text else None
    kind = type(getattr(BlockFormat, name))
    return float(text) if kind is float else kind(int(text))
