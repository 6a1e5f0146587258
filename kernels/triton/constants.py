"""Formats as compile-time constants of Triton kernels.

A kernel is compiled once for each constant, and Triton finds compiled kernels by the `repr` of
their constants. `BlockFormat` shows only names, and formats that come through an operator's schema
have none; so these classes show every number, and hold nothing but what a kernel reads.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from functools import lru_cache

from fp4lab.formats import WHOLE, BlockFormat, ElementType, Overflow
from fp4lab.kernels.minifloat.reference import FLOAT_MAX


def float32(value: float) -> float:
    """The nearest float32, so that no compiler has to choose it."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def _bits(value: float) -> int:
    bits: int = struct.unpack("<i", struct.pack("<f", value))[0]
    return bits


class Constant:
    """A frozen dataclass whose `repr` shows all values, with no character a symbol cannot have."""

    def __repr__(self) -> str:
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]
        text = "_".join(repr(value) for value in values)
        return f"{type(self).__name__}_{text}".replace("-", "m").replace(".", "p").replace("+", "")


@dataclass(frozen=True, repr=False)
class Element(Constant):
    """An `ElementType`."""

    bits: int
    mantissa_bits: int
    min_exponent: int
    max_exponent: int
    bias: int
    #: the largest number, its bits, and the bound of magnitudes that overflow to a special value
    largest: float
    max_bits: int
    beyond: float
    #: what a magnitude beyond the largest becomes where it does not saturate
    special_bits: int
    max_code: int
    inf_code: int
    has_inf: bool
    nan_code: int
    sign_code: int
    has_zero: bool
    short_float32: bool

    @staticmethod
    @lru_cache(maxsize=256)
    def of(element: ElementType) -> Element:
        """The constants of a type."""
        nan_code = element.nan_code or 0
        return Element(
            bits=element.bits,
            mantissa_bits=element.mantissa_bits,
            min_exponent=element.min_exponent,
            max_exponent=element.max_exponent,
            bias=element.bias,
            largest=float32(element.max_value),
            max_bits=_bits(element.max_value),
            beyond=min(2.0 ** (element.max_exponent + 1), FLOAT_MAX),
            special_bits=_bits(element.beyond_max),
            max_code=element.max_code,
            inf_code=nan_code if element.inf_code is None else element.inf_code,
            has_inf=element.inf_code is not None,
            nan_code=nan_code,
            sign_code=element.sign_code,
            has_zero=element.has_zero,
            short_float32=element.is_short_float32,
        )


@dataclass(frozen=True, repr=False)
class Plan(Constant):
    """A `BlockFormat`.

    Where a side of its block is the whole extent, `whole` is 1 (the tensor) or 2 (rows): the block
    is then the kernel's tile, and its amax is read instead of computed.
    """

    element: Element
    scale: Element | None
    block_rows: int
    block_columns: int
    whole: int
    scale_rule: int
    block_scale: int
    level: int
    target: float
    inverse_target: float
    max_value: float
    amax_factor: float
    inverse_factor: float
    scale_floor: float
    zero_scale: float
    inverse_zero_scale: float
    scale_ties: int
    scale_precision: Element
    ties: int
    saturate: bool
    selection: int
    keep_negative_zero: bool
    packed: bool
    #: whether one scale covers whole rows and is left to the epilogue of a product
    late_scale: bool

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(fmt: BlockFormat, tile: tuple[int, int]) -> Plan:
        """The constants of a format for a kernel with tiles of rows x columns."""
        rows, columns = fmt.block or (1, 1)
        return Plan(
            element=Element.of(fmt.element),
            scale=None if fmt.scale is None else Element.of(fmt.scale),
            block_rows=rows or tile[0],
            block_columns=columns or tile[1],
            whole=0 if columns != WHOLE else 1 if rows == WHOLE else 2,
            scale_rule=int(fmt.scale_rule),
            block_scale=int(fmt.block_scale),
            level=int(fmt.level),
            target=float32(fmt.target),
            inverse_target=float32(1.0 / fmt.target),
            max_value=float32(fmt.element.max_value),
            amax_factor=float32(fmt.amax_factor),
            inverse_factor=float32(1.0 / fmt.amax_factor),
            scale_floor=float32(fmt.scale_floor),
            zero_scale=float32(fmt.zero_scale),
            inverse_zero_scale=float32(1.0 / fmt.zero_scale) if fmt.zero_scale else 0.0,
            scale_ties=int(fmt.scale_ties),
            scale_precision=Element.of(fmt.scale_precision),
            ties=int(fmt.ties),
            saturate=fmt.overflow == Overflow.SATURATE,
            selection=int(fmt.selection),
            keep_negative_zero=fmt.keep_negative_zero,
            packed=fmt.packed,
            late_scale=fmt.whole_rows,
        )


@dataclass(frozen=True, repr=False)
class How(Constant):
    """What a kernel does with a tile beside the format: see `Quantization`."""

    #: what is written: a member of `Result`
    result: int
    #: dtypes of x and of the values written, by `DTYPES`
    dtype: int
    out_dtype: int
    transposed: bool
    #: size of the Hadamard transform, 0 for none, and its signs (bit k: entry k is negative)
    hadamard: int
    signs: int
    noise_bits: int
    #: whether tiles begin where a Philox counter does
    aligned: bool
    #: whether the chip's own conversion makes the codes
    native: bool


def sign_mask(signs: tuple[int, ...]) -> int:
    """Bit k is set where sign k is negative."""
    return sum(1 << k for k, sign in enumerate(signs) if sign < 0)
