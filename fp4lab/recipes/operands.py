"""What the three matrix products of one linear layer make of their operands.

`fp4lab.recipes.places` names the operands and their axes. Blocks of scales, second levels per row
and Hadamard transforms run along the contracted one. A layer keeps no other state: its numerics are
this data.

Left out until a method needs them: several terms per operand (mean or low-rank splits), scale
corrections and backward masks, which would be further fields with defaults that change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from fp4lab.errors import InputError, expect
from fp4lab.formats import BlockFormat, Hadamard, Level, Rounding
from fp4lab.recipes.places import FPROP_W, FPROP_X, GEMMS, PLACES, TENSORS, Place
from fp4lab.recipes.tables import html_table, text_table
from fp4lab.specs.plain import repr_without_defaults


class Source(Enum):
    """What an operand is made from.

    Members:
        HIGH_PRECISION: the tensor itself
        FORWARD: the dequantized copy that fprop used (X and W in the backward products only)
    """

    HIGH_PRECISION = "high_precision"
    FORWARD = "forward"


@dataclass(frozen=True, kw_only=True)
class Operand:
    """What becomes of one operand: source -> Hadamard -> quantize -> into the product.

    Args:
        format: None leaves the values alone: with `HIGH_PRECISION` the tensor as it is, with
            `FORWARD` the very numbers fprop multiplied (for formats that equal their transpose,
            such as 16x16, the same codes). With a format, `FORWARD` re-quantizes those numbers.
        rounding: how elements are rounded; only with a format.
        hadamard: transform along the contracted axis before quantization, the same on both sides.
        source: see `Source`.

    Raises:
        InputError: stochastic rounding without a format, or a field of another kind.

    >>> from fp4lab.formats import NVFP4, NVFP4_SIGNS
    >>> transform = Hadamard(16, NVFP4_SIGNS)
    >>> print(Operand(format=NVFP4, rounding=Rounding.STOCHASTIC_8, hadamard=transform))
    nvfp4 SR8 RHT16
    """

    format: BlockFormat | None = None
    rounding: Rounding = Rounding.NEAREST
    hadamard: Hadamard | None = None
    source: Source = Source.HIGH_PRECISION

    def __post_init__(self) -> None:
        expect("format", self.format, BlockFormat, "use formats.get(name)", optional=True)
        expect("hadamard", self.hadamard, Hadamard, "use formats.Hadamard(size)", optional=True)
        expect("rounding", self.rounding, Rounding, "use one of formats.Rounding")
        expect("source", self.source, Source, "use one of recipes.Source")
        if self.format is None and self.rounding != Rounding.NEAREST:
            raise InputError(
                f"rounding={self.rounding.value!r} with format=None: nothing is rounded; "
                "give a format, or leave the rounding at 'nearest'"
            )

    __repr__ = repr_without_defaults

    @property
    def is_quantized(self) -> bool:
        """Whether it is cast to 8 bits or fewer here (BF16 and FP16 count as high precision)."""
        return self.format is not None and self.format.element.bits <= 8

    def __str__(self) -> str:
        from_copy = self.source == Source.FORWARD
        if self.format is None:
            parts = ["as in fprop" if from_copy else "as it is"]
        else:
            short = {"nearest": "", "stochastic8": "SR8", "stochastic32": "SR32"}
            parts = [self.format.name, short[self.rounding.value]]
        if self.hadamard is not None:
            parts.append(f"{'H' if self.hadamard.signs is None else 'RHT'}{self.hadamard.size}")
        if self.format is not None and from_copy:
            parts.append("of fprop's copy")
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """One product a @ b^T of two operands whose last axes are contracted.

    Raises:
        InputError: Hadamard transforms that differ and so would not cancel.

    >>> Gemm(a=Operand(hadamard=Hadamard(16)))
    Traceback (most recent call last):
    fp4lab.errors.InputError: hadamard of a=Hadamard(size=16, signs=None) and of b=None do not...
    """

    a: Operand = Operand()
    b: Operand = Operand()

    def __post_init__(self) -> None:
        for side in ("a", "b"):
            expect(side, getattr(self, side), Operand, "use recipes.Operand(format=..)")
        if self.a.hadamard != self.b.hadamard:
            raise InputError(
                f"hadamard of a={self.a.hadamard} and of b={self.b.hadamard} do not cancel in the "
                "product; give both operands of a GEMM the same transform"
            )

    __repr__ = repr_without_defaults


@dataclass(frozen=True, kw_only=True)
class LinearRecipe:
    """The numerics of one linear layer; `LinearRecipe()` leaves every operand as it is.

    Raises:
        InputError: a `FORWARD` operand that has no forward copy (fprop itself, or dY), or whose
            forward copy is Hadamard-transformed and so is a copy of something else.

    >>> from fp4lab.formats import MXFP4
    >>> print(LinearRecipe(fprop=Gemm(b=Operand(format=MXFP4))))
        fprop     dgrad     wgrad (along tokens)
    --  --------  --------  --------------------
    X   as it is  -         as it is
    W   mxfp4     as it is  -
    dY  -         as it is  as it is
    """

    fprop: Gemm = Gemm()
    dgrad: Gemm = Gemm()
    wgrad: Gemm = Gemm()

    def __post_init__(self) -> None:
        for gemm in GEMMS:
            expect(gemm, getattr(self, gemm), Gemm, "use recipes.Gemm(a=.., b=..)")
        for place, operand in self.operands().items():
            if operand.source != Source.FORWARD:
                continue
            tensor = TENSORS[place.tensor]
            if place.forward is None:
                raise InputError(
                    f"source='forward' of {place}: {tensor} has no copy from fprop there; use "
                    "'high_precision'"
                )
            if self.operand(place.forward).hadamard is not None:
                raise InputError(
                    f"source='forward' of {place}: fprop uses {tensor} after a Hadamard transform "
                    "along another axis; use 'high_precision'"
                )

    __repr__ = repr_without_defaults

    @classmethod
    def uniform(cls, fmt: BlockFormat) -> LinearRecipe:
        """Every operand in one format, to nearest, from high precision."""
        gemm = Gemm(a=Operand(format=fmt), b=Operand(format=fmt))
        return cls(fprop=gemm, dgrad=gemm, wgrad=gemm)

    def operand(self, place: Place) -> Operand:
        """The operand in one place."""
        operand: Operand = getattr(getattr(self, place.gemm), place.side)
        return operand

    @classmethod
    def from_operands(cls, operands: Mapping[Place, Operand]) -> LinearRecipe:
        """The recipe with these operands, one for every place of `PLACES`."""
        sides: dict[str, dict[str, Operand]] = {gemm: {} for gemm in GEMMS}
        for place in PLACES:
            sides[place.gemm][place.side] = operands[place]
        return cls(**{gemm: Gemm(**both) for gemm, both in sides.items()})

    def operands(self) -> dict[Place, Operand]:
        """All operands by place."""
        return {place: self.operand(place) for place in PLACES}

    @property
    def is_quantized(self) -> bool:
        """Whether any operand is cast to 8 bits or fewer."""
        return any(operand.is_quantized for operand in self.operands().values())

    @property
    def is_stochastic(self) -> bool:
        """Whether any operand is rounded stochastically."""
        return any(operand.rounding != Rounding.NEAREST for operand in self.operands().values())

    @property
    def weights_differ(self) -> bool:
        """Whether dgrad multiplies other values of W than fprop did, as blocks along N give."""
        forward, backward = self.fprop.b, self.dgrad.b
        if backward.source == Source.FORWARD:
            return backward.format is not None and not is_symmetric(backward.format)
        plain = forward.rounding == Rounding.NEAREST and forward.hadamard is None
        return not (backward == forward and plain and is_symmetric(forward.format))

    def detached(self, place: Place) -> Operand:
        """The operand made from high precision, so that fprop may change and it does not.

        Raises:
            InputError: an operand that high precision cannot give: one re-quantized from the
                forward copy, or reused from a format that differs from its transpose.
        """
        operand = self.operand(place)
        if operand.source == Source.HIGH_PRECISION:
            return operand
        assert place.forward is not None
        forward = self.operand(place.forward)
        if forward.format is None:
            return replace(operand, source=Source.HIGH_PRECISION)
        if operand == Operand(source=Source.FORWARD) and is_symmetric(forward.format):
            return forward
        raise InputError(
            f"{place} needs the copy of {TENSORS[place.tensor]} that fprop made, and "
            "cannot stay as it is when only fprop changes; quantize it from high precision instead"
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows: X, W, dY by product; "-" where a tensor does not enter."""
        entries = {(p.gemm, p.tensor): str(operand) for p, operand in self.operands().items()}
        header = ["", "fprop", "dgrad", "wgrad (along tokens)"]
        return header, [
            [symbol, *(entries.get((gemm, tensor), "-") for gemm in GEMMS)]
            for tensor, symbol in TENSORS.items()
        ]

    def __str__(self) -> str:
        return text_table(*self.table())

    def _repr_html_(self) -> str:
        return html_table(*self.table())

    def with_backward_of(self, other: LinearRecipe) -> LinearRecipe:
        """This forward product with the backward products of `other`."""
        if self.fprop == other.fprop:
            return other
        operands = {place: other.detached(place) for place in PLACES}
        return self.from_operands({**operands, FPROP_X: self.fprop.a, FPROP_W: self.fprop.b})


def is_symmetric(fmt: BlockFormat | None) -> bool:
    """Whether a tensor and its transpose quantize to the same values (None: untouched)."""
    if fmt is None or fmt.block is None:
        return True
    return fmt.block[0] == fmt.block[1] and fmt.level != Level.ROW
