"""Element types: what one low-precision number is.

A minifloat with `e` exponent bits, `m` mantissa bits and exponent bias `b` has the values

    normal:     (1 + M / 2^m) * 2^(E - b)          E >= 1
    subnormal:       M / 2^m  * 2^(1 - b)          E == 0

so it is five integers and two flags, and everything else here is derived from them. INT4 is the
minifloat E1M2 with bias -1: its grid 0, 1, .., 7 is uniform, and the same rounding serves it.

Sources: OCP Microscaling Formats (MX) v1.0, section 5.3; OFP8 v1.0; IEEE 754.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from fp4lab.errors import InputError, expect, unknown


class Specials(IntEnum):
    """Which magnitudes of the top exponent are not numbers."""

    #: every code is a finite number (E2M1, E2M3, E3M2, INT4)
    NONE = 0
    #: only the all-ones magnitude, which is NaN (OFP8 E4M3, E8M0)
    NAN = 1
    #: the whole top exponent, infinity first and NaN after it (E5M2, UE5M3, BF16, FP16)
    IEEE = 2


def compute_properties(instance: object) -> None:
    """Computes all cached properties now: torch.compile cannot trace their lock."""
    for name, attribute in vars(type(instance)).items():
        if isinstance(attribute, cached_property):
            getattr(instance, name)


@dataclass(frozen=True)
class ElementType:
    """A binary floating-point type of at most 16 bits, or float32 as a scale type.

    Args:
        name: the name in formats, files and messages.
        exponent_bits: width of the exponent field, 1 to 8.
        mantissa_bits: width of the mantissa field, 0 to 23.
        bias: exponent bias; the smallest normal number is 2^(1 - bias).
        specials: which codes of the top exponent are NaN or infinity.
        signed: whether there is a sign bit.
        has_zero: False for E8M0, whose code 0 is 2^-127 (it has no mantissa, zero or subnormals).

    Raises:
        InputError: a width outside its range, or a grid that float32 arithmetic cannot round to.

    >>> E4M3.max_value, E4M3.min_subnormal, E2M1.bits
    (448.0, 0.001953125, 4)
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials = Specials.NONE
    signed: bool = True
    has_zero: bool = True

    def __post_init__(self) -> None:
        expect("name", self.name, str, "give the type a name in text")
        kinds: dict[str, type] = {
            **dict.fromkeys(("exponent_bits", "mantissa_bits", "bias"), int),
            **dict.fromkeys(("signed", "has_zero"), bool),
        }
        for field, kind in kinds.items():
            value = getattr(self, field)
            if type(value) is not kind:
                cure = "a whole number" if kind is int else "True or False"
                raise InputError(
                    f"{field}={value!r} of {self.name!r} is no {kind.__name__}; give {cure}"
                )
        expect("specials", self.specials, Specials, "use one of formats.Specials")
        if not 1 <= self.exponent_bits <= 8 or not 0 <= self.mantissa_bits <= 23:
            raise InputError(
                f"exponent_bits={self.exponent_bits}, mantissa_bits={self.mantissa_bits} of "
                f"{self.name!r}: an element type has 1 to 8 exponent and 0 to 23 mantissa bits"
            )
        if self.bits > 16 and not (self.is_short_float32 and self.mantissa_bits == 23):
            raise InputError(
                f"{self.name!r} has {self.bits} bits; codes have at most 16 (or are float32's)"
            )
        if self.specials == Specials.IEEE and self.mantissa_bits == 0:
            raise InputError(
                f"specials=IEEE of {self.name!r} without a mantissa has no code for NaN beside "
                "infinity's; use Specials.NAN or NONE"
            )
        if self.max_exponent < self.min_exponent:
            raise InputError(
                f"specials={self.specials.name} of {self.name!r} leave no normal number; use more "
                "exponent bits, or Specials.NONE"
            )
        low, high = self.min_exponent - self.mantissa_bits, self.max_exponent - self.mantissa_bits
        if self.has_zero and not self.is_short_float32 and (low < -126 or high > 103):
            raise InputError(
                f"bias={self.bias} of {self.name!r} gives steps from 2^{low} to 2^{high}; choose a "
                "bias that keeps them from 2^-126 to 2^103, where float32 can round to them"
            )
        if not self.has_zero and (self.mantissa_bits or self.signed or low < -127 or high > 127):
            raise InputError(
                f"has_zero=False of {self.name!r} is for unsigned powers of two from 2^-127 to "
                "2^127; set mantissa_bits=0, signed=False and such a bias"
            )

        compute_properties(self)

    def __repr__(self) -> str:
        return f"ElementType({self.name!r})"

    @cached_property
    def definition(self) -> str:
        """All fields but the name, as text for operators (`from_definition` inverts it).

        >>> E2M1.definition
        '2,1,1,0,1,1'
        """
        widths = (self.exponent_bits, self.mantissa_bits, self.bias)
        return ",".join(map(str, (*widths, *map(int, (self.specials, self.signed, self.has_zero)))))

    @staticmethod
    def from_definition(text: str) -> ElementType:
        """Inverse of `definition`, without the name."""
        exponent, mantissa, bias, specials, signed, has_zero = map(int, text.split(","))
        return ElementType(
            "", exponent, mantissa, bias, Specials(specials), bool(signed), bool(has_zero)
        )

    @cached_property
    def is_short_float32(self) -> bool:
        """Whether codes are the leading bits of a float32 (BF16, and FP32 itself)."""
        same = self.signed and self.exponent_bits == 8 and self.bias == 127
        return same and self.specials == Specials.IEEE

    @cached_property
    def beyond_max(self) -> float:
        """What a number beyond the largest becomes if it does not saturate: infinity, or else NaN.

        The largest number itself where the type has neither.
        """
        if self.specials == Specials.NONE:
            return self.max_value
        return math.nan if self.specials == Specials.NAN else math.inf

    @cached_property
    def is_ieee(self) -> bool:
        """Whether bias and specials are those of IEEE 754 for these widths."""
        standard = self.bias == (1 << (self.exponent_bits - 1)) - 1
        return standard and self.signed and self.has_zero and self.specials == Specials.IEEE

    @cached_property
    def bits(self) -> int:
        """Width of a code."""
        return self.signed + self.exponent_bits + self.mantissa_bits

    @cached_property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number; below it the grid is uniform."""
        return 1 - self.bias if self.has_zero else -self.bias

    @cached_property
    def max_exponent(self) -> int:
        """Exponent of the largest finite number."""
        top = (1 << self.exponent_bits) - 1 - self.bias
        lost = self.specials == Specials.IEEE or (
            self.specials == Specials.NAN and self.mantissa_bits == 0
        )
        return top - 1 if lost else top

    @cached_property
    def max_value(self) -> float:
        """Largest finite number."""
        steps = (2 << self.mantissa_bits) - 1
        if self.specials == Specials.NAN and self.mantissa_bits > 0:
            steps -= 1
        return float(steps) * 2.0 ** (self.max_exponent - self.mantissa_bits)

    @cached_property
    def min_normal(self) -> float:
        """Smallest positive normal number."""
        return 2.0**self.min_exponent

    @cached_property
    def min_subnormal(self) -> float:
        """Smallest positive number; the spacing of the grid up to `2 * min_normal`."""
        return 2.0 ** (self.min_exponent - self.mantissa_bits)

    @cached_property
    def max_code(self) -> int:
        """Code of `max_value`."""
        magnitudes = 1 << (self.exponent_bits + self.mantissa_bits)
        if self.specials == Specials.IEEE:
            return magnitudes - (1 << self.mantissa_bits) - 1
        return magnitudes - 1 - (self.specials == Specials.NAN)

    @cached_property
    def sign_code(self) -> int:
        """The sign bit in a code; 0 for unsigned types."""
        return 1 << (self.bits - 1) if self.signed else 0

    @cached_property
    def nan_code(self) -> int | None:
        """The positive NaN with all magnitude bits set, None where every code is a number."""
        if self.specials == Specials.NONE:
            return None
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    @cached_property
    def inf_code(self) -> int | None:
        """Code of positive infinity, None where there is none."""
        return self.max_code + 1 if self.specials == Specials.IEEE else None

    def decode(self, code: int) -> float:
        """The number a code stands for, as a Python float; InputError for a code that is too wide.

        >>> E2M1.decode(0b1111), E8M0.decode(127)
        (-6.0, 1.0)
        """
        if not 0 <= code < 1 << self.bits:
            raise InputError(
                f"code={code} does not fit the {self.bits} bits of {self.name!r}; give one from 0 "
                f"to {(1 << self.bits) - 1}"
            )
        sign = -1.0 if code & self.sign_code else 1.0
        magnitude = code & ~self.sign_code
        if magnitude > self.max_code:
            return sign * float("inf") if magnitude == self.inf_code else float("nan")
        exponent, mantissa = divmod(magnitude, 1 << self.mantissa_bits)
        if not self.has_zero:
            return float(2.0 ** (exponent - self.bias))
        if exponent:
            mantissa += 1 << self.mantissa_bits
        else:
            exponent = 1
        return sign * mantissa * 2.0 ** (exponent - self.bias - self.mantissa_bits)

    def holds(self, number: float) -> bool:
        """Whether a finite number of either sign, or 0, is one of the type's.

        >>> E4M3.holds(448), E4M3.holds(449), E8M0.holds(0)
        (True, False, False)
        """
        if number == 0:
            return self.has_zero
        exponent = max(math.frexp(number)[1] - 1, self.min_exponent)
        whole = math.ldexp(number, self.mantissa_bits - exponent).is_integer()
        return whole and abs(number) <= self.max_value and (self.signed or number > 0)

    def values(self) -> tuple[float, ...]:
        """The number of every code, in code order; InputError for types of more than 8 bits.

        >>> E2M1.values()[:8]
        (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
        """
        if self.bits > 8:
            raise InputError(f"{self.name!r} has 2^{self.bits} codes; only 8 bits are listed")
        return tuple(self.decode(code) for code in range(1 << self.bits))


#: FP4 of NVFP4 and MXFP4: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives
E2M1 = ElementType("e2m1", 2, 1, 1)
#: FP6 with more range: up to 28
E3M2 = ElementType("e3m2", 3, 2, 3)
#: FP6 with more precision: up to 7.5
E2M3 = ElementType("e2m3", 2, 3, 1)
#: OFP8 E4M3 ("fn"): up to 448, one NaN magnitude, no infinity
E4M3 = ElementType("e4m3", 4, 3, 7, Specials.NAN)
#: OFP8 E5M2: up to 57344, with infinity and NaN
E5M2 = ElementType("e5m2", 5, 2, 15, Specials.IEEE)
#: the power-of-two scale of the MX formats: 2^-127 .. 2^127, code 255 is NaN
E8M0 = ElementType("e8m0", 8, 0, 127, Specials.NAN, signed=False, has_zero=False)
#: E4M3 without the sign bit, as a block scale (same bytes as E4M3's positive half)
UE4M3 = ElementType("ue4m3", 4, 3, 7, Specials.NAN, signed=False)
#: a block scale with more range: up to 61440 (arXiv 2609.02846)
UE5M3 = ElementType("ue5m3", 5, 3, 15, Specials.IEEE, signed=False)
#: symmetric INT4, -7 .. 7, as the uniform minifloat E1M2
INT4 = ElementType("int4", 1, 2, -1)
#: the same grid scaled to end at 1.75
E1M2 = ElementType("e1m2", 1, 2, 1)
BF16 = ElementType("bf16", 8, 7, 127, Specials.IEEE)
FP16 = ElementType("fp16", 5, 10, 15, Specials.IEEE)
#: only as the stored type of a scale
FP32 = ElementType("fp32", 8, 23, 127, Specials.IEEE)

ELEMENTS: dict[str, ElementType] = {
    e.name: e
    for e in (E2M1, E3M2, E2M3, E4M3, E5M2, E8M0, UE4M3, UE5M3, INT4, E1M2, BF16, FP16, FP32)
}


def get_element(name: str) -> ElementType:
    """The element type of this name; an unknown name is an InputError with a suggestion.

    >>> get_element("e4m3").max_value
    448.0
    """
    if name not in ELEMENTS:
        raise unknown("element", name, ELEMENTS)
    return ELEMENTS[name]
