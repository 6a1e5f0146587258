"""One rounding routine for every element type.

With `e = max(exponent(|x|), min_exponent)` the grid around x has the spacing `u = 2^(e - m)`.
Adding and subtracting the number `2^(e + 23 - m)`, whose float32 spacing is just u, rounds |x| to
the nearest multiple of u, ties to even, with no table, branch or cast:

    a = min(|x|, max);  big = 2^(e + 23 - m);  q = copysign((a + big) - big, x)

Types that are short float32s (BF16) reach to 2^127, where that number would overflow; they are
rounded on their bits instead, or by torch's own 16-bit cast where that is the same. torch's 8-bit
casts are not used: their overflow rule changed between releases.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fp4lab.formats import ElementType, Overflow, Ties

FLOAT_MAX = torch.finfo(torch.float32).max
_EXPONENT = 0x7F800000
#: 16-bit casts that torch defines as IEEE 754 does, everywhere and always
_NATIVE = {(8, 7): torch.bfloat16, (5, 10): torch.float16}


def _power_of_two(biased_exponent: Tensor) -> Tensor:
    """2^(n - 127) from int32 n in [1, 254]."""
    return (biased_exponent << 23).view(torch.float32)


def _grid_exponent(a: Tensor, element: ElementType) -> Tensor:
    """Exponent bits, still shifted by 23, of the binade whose spacing applies at a >= 0."""
    exponent = a.view(torch.int32) & _EXPONENT
    return exponent.clamp_(min=(127 + element.min_exponent) << 23)


def _limit(x: Tensor, element: ElementType, overflow: Overflow) -> Tensor:
    """|x|, bounded so that the rounding stays in range; NaN stays NaN."""
    beyond = min(2.0 ** (element.max_exponent + 1), FLOAT_MAX)
    return x.abs().clamp_(max=element.max_value if overflow == Overflow.SATURATE else beyond)


def _special(q: Tensor, element: ElementType) -> Tensor:
    """Replace magnitudes beyond the largest by the type's infinity or NaN."""
    return torch.where(q > element.max_value, element.beyond_max, q)


def round_nearest(
    x: Tensor,
    element: ElementType,
    ties: Ties = Ties.EVEN,
    overflow: Overflow = Overflow.SATURATE,
) -> Tensor:
    """The nearest number of the element type, as float32.

    Args:
        x: float32, any shape.
        element: the grid (not E8M0: powers of two are made by scale rules).
        ties: where halfway values go.
        overflow: what values beyond the largest become.

    Returns:
        float32 like x. Zeros keep their sign, negative values that round to zero give -0, NaN
        stays NaN.
    """
    if element.mantissa_bits == 23:
        return x.clone()
    native = _NATIVE.get((element.exponent_bits, element.mantissa_bits))
    if native and element.is_ieee and ties == Ties.EVEN and overflow == Overflow.SPECIAL:
        return x.to(native).to(torch.float32)
    if element.is_short_float32:
        return _round_on_bits(x, element, ties, overflow)
    a = _limit(x, element, overflow)
    exponent = _grid_exponent(a, element)
    if ties == Ties.EVEN:
        big = exponent.add_((23 - element.mantissa_bits) << 23).view(torch.float32)
        q = a.add_(big).sub_(big)
    else:
        spacing = exponent.sub_(element.mantissa_bits << 23).view(torch.float32)
        steps = a.div_(spacing)
        whole = steps.floor()
        rest = steps.sub_(whole)
        up = rest >= 0.5 if ties == Ties.AWAY else rest > 0.5
        q = whole.add_(up).mul_(spacing)
    if overflow == Overflow.SPECIAL:
        q = _special(q, element)
    return torch.copysign(q, x)


def _round_on_bits(x: Tensor, element: ElementType, ties: Ties, overflow: Overflow) -> Tensor:
    """Nearest for types with float32's exponent range: their codes are the leading bits.

    The carry of the magnitude never reaches the sign bit: the largest magnitude is infinity's.
    """
    drop = 23 - element.mantissa_bits
    bits = x.view(torch.int32)
    below_half = (1 << (drop - 1)) - 1
    if ties == Ties.EVEN:
        rounded = (bits >> drop).bitwise_and_(1).add_(bits).add_(below_half)
    else:
        rounded = bits + (below_half + (ties == Ties.AWAY))
    q = rounded.bitwise_and_(-1 << drop).view(torch.float32)
    if overflow == Overflow.SATURATE:
        q = q.clamp(-element.max_value, element.max_value)
    return torch.where(x.isnan(), x, q)


def _stochastic_on_bits(
    x: Tensor, element: ElementType, random: Tensor, bits: int, overflow: Overflow
) -> Tensor:
    """The same for stochastic rounding: the dropped bits and the noise add up to a carry."""
    drop = 23 - element.mantissa_bits
    magnitude = x.abs().view(torch.int32).to(torch.int64)
    dropped = (magnitude & ((1 << drop) - 1)) << (32 - drop)
    carry = (dropped + (random.to(torch.int64) << (32 - bits))) >> 32
    q = (((magnitude >> drop) + carry) << drop).to(torch.int32).view(torch.float32)
    if overflow == Overflow.SATURATE:
        q = q.clamp(max=element.max_value)
    return torch.copysign(torch.where(x.isnan(), x, q), x)


def round_stochastic(
    x: Tensor,
    element: ElementType,
    random: Tensor,
    bits: int,
    overflow: Overflow = Overflow.SATURATE,
) -> Tensor:
    """Round to one of the two neighbours, the upper with probability floor(2^bits f) / 2^bits.

    `f` is the distance to the lower neighbour in units of the spacing. `floor(2^bits f)` and the
    random integer are added exactly and the carry moves the value up: what Blackwell's `cvt.rs`
    does with its 8 bits. Adding the noise to |x| in float32 instead would round f up where x is far
    below the smallest normal number.

    Args:
        x: float32, any shape.
        element: the grid.
        random: integers in [0, 2^bits), shaped like x.
        bits: 8 or 32.
        overflow: what values beyond the largest become.

    Returns:
        float32 like x; numbers of the grid are unchanged, signs and NaN as in `round_nearest`.
    """
    if element.is_short_float32:
        return _stochastic_on_bits(x, element, random, bits, overflow)
    a = _limit(x, element, overflow)
    spacing = _grid_exponent(a, element).sub_(element.mantissa_bits << 23).view(torch.float32)
    steps = a.div_(spacing)
    if bits == 8:
        q = steps.mul_(256.0).floor_().add_(random).mul_(2.0**-8).floor_().mul_(spacing)
    else:
        whole = steps.floor()
        threshold = ((steps - whole) * 2.0**32).nan_to_num_().to(torch.int64)
        q = (whole + (random + threshold >= 1 << 32)) * spacing
    special = overflow == Overflow.SPECIAL
    q = _special(q, element) if special else q.clamp(max=element.max_value)
    return torch.copysign(q, x)


def encode(q: Tensor, element: ElementType) -> Tensor:
    """Codes of numbers that are on the grid already.

    Args:
        q: float32 values of the element type (from a rounding function).
        element: the type; E8M0 takes powers of two.

    Returns:
        uint8 codes (int16 bit patterns for 16-bit types). NaN becomes the type's NaN with all
        magnitude bits set, and code 0 where the type has none; infinity without a code becomes
        NaN's.
    """
    bits = q.view(torch.int32)
    if not element.has_zero:
        exponent = (bits & 0x7FFFFFFF) >> 23
        code = torch.where(exponent == 255, element.nan_code or 0, exponent + element.bias - 127)
        return code.clamp_(min=0).to(torch.uint8)
    a = q.abs()
    exponent = _grid_exponent(a, element)
    if element.is_short_float32:
        magnitude = a.view(torch.int32) >> (23 - element.mantissa_bits)
    else:
        # the number of grid steps, exactly, then the binades below it
        spacing = (exponent - (element.mantissa_bits << 23)).view(torch.float32)
        binades = (exponent >> 23) - (127 + element.min_exponent)
        steps = torch.where(a.isfinite(), a, 0.0).div_(spacing).to(torch.int32)
        magnitude = steps + (binades << element.mantissa_bits)
    infinity = element.inf_code if element.inf_code is not None else element.nan_code or 0
    magnitude = torch.where(a == float("inf"), infinity, magnitude)
    magnitude = torch.where(a.isnan(), element.nan_code or 0, magnitude)
    if element.signed:
        negative = bits < 0
        if element.nan_code is None:
            negative &= ~a.isnan()
        magnitude = magnitude | (negative.to(torch.int32) * element.sign_code)
    return magnitude.to(torch.uint8 if element.bits <= 8 else torch.int16)


def decode(codes: Tensor, element: ElementType) -> Tensor:
    """Values of codes, as float32 (uint8 codes; int16 bit patterns for 16-bit types)."""
    if element.bits <= 8:
        table = torch.tensor(element.values(), dtype=torch.float32, device=codes.device)
        return table[(codes & ((1 << element.bits) - 1)).to(torch.int32)]
    code = codes.to(torch.int32) & ((1 << element.bits) - 1)
    if element.is_short_float32:
        return (code << (23 - element.mantissa_bits)).view(torch.float32)
    magnitude = code & ~element.sign_code
    binade = (magnitude >> element.mantissa_bits).clamp(min=1)
    steps = magnitude - ((binade - 1) << element.mantissa_bits)
    spacing = _power_of_two(binade + (127 - element.bias - element.mantissa_bits))
    value = torch.where(magnitude > element.max_code, float("nan"), steps * spacing)
    if element.inf_code is not None:
        value = torch.where(magnitude == element.inf_code, float("inf"), value)
    return torch.where(code != magnitude, -value, value)


def rounded_to(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values whose NaN are all the same, rounded to `dtype`, with such NaN again.

    torch's casts to 16 bits give NaN other bits in vectors than in what is left of them.
    """
    values = values.to(dtype)
    return positive_nan_(values) if values.element_size() == 2 else values


def positive_nan_(x: Tensor) -> Tensor:
    """Makes every NaN of x the same, in place: that of a computed one depends on the processor."""
    return x.nan_to_num_(nan=math.nan, posinf=math.inf, neginf=-math.inf)
