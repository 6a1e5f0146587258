# mypy: disable-error-code="untyped-decorator, no-redef"
"""Rounding to any element type, codes and their values, on tiles: `reference.py` in Triton.

All arithmetic is float32 and integer. Where the reference divides by a grid spacing, a power of two
from 2^-126 to 2^103, its reciprocal multiplies: both round the same real number. What is written
holds one NaN, 0x7FC00000.

Integers and comparisons run at half the rate of additions and multiplications, and decide how fast
a quantizer is; so sums and products do what they can.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fp4lab.formats import BF16_ELEMENT, FP16_ELEMENT, ElementType, Overflow, Ties
from fp4lab.kernels.schema import DTYPES
from fp4lab.kernels.triton.constants import Element
from fp4lab.kernels.triton.launch import INTERPRETED, as_integers, launch, plain, readable

INFINITY = tl.constexpr(0x7F800000)
NAN = tl.constexpr(0x7FC00000)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
SIGN = tl.constexpr(-0x80000000)
BF16 = tl.constexpr(Element.of(BF16_ELEMENT))
FP16 = tl.constexpr(Element.of(FP16_ELEMENT))
EVEN = tl.constexpr(int(Ties.EVEN))
AWAY = tl.constexpr(int(Ties.AWAY))


@triton.jit
def is_number(x: tl.tensor) -> tl.tensor:
    """Whether x is not NaN."""
    return x == x  # noqa: PLR0124


@triton.jit
def one_nan(x: tl.tensor) -> tl.tensor:
    """x, with every NaN the same."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(is_number(x), bits, NAN).to(tl.float32, bitcast=True)


@triton.jit
def grid_exponent(magnitude: tl.tensor, element: tl.constexpr) -> tl.tensor:
    """Exponent bits, still shifted by 23, of the binade whose spacing applies to a magnitude."""
    return tl.maximum(magnitude & INFINITY, (127 + element.min_exponent) << 23)


@triton.jit
def bounded(x: tl.tensor, element: tl.constexpr, saturate: tl.constexpr) -> tl.tensor:
    """|x|, bounded so that the rounding stays in range; NaN stays NaN."""
    LIMIT: tl.constexpr = element.largest if saturate else element.beyond
    return tl.minimum(tl.abs(x), LIMIT, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def finished(
    q: tl.tensor, x: tl.tensor, element: tl.constexpr, saturate: tl.constexpr
) -> tl.tensor:
    """Magnitudes q with the sign of x; what is beyond the largest becomes special."""
    out = q.to(tl.int32, bitcast=True)
    if not saturate:
        too_large = (out > element.max_bits) & (out <= INFINITY)
        out = tl.where(too_large, element.special_bits, out)
    out = out | (x.to(tl.int32, bitcast=True) & SIGN)
    return out.to(tl.float32, bitcast=True)


@triton.jit
def nearest(
    x: tl.tensor, element: tl.constexpr, ties: tl.constexpr, saturate: tl.constexpr
) -> tl.tensor:
    """The nearest number of the element type, as float32 (`reference.round_nearest`).

    NaN stays one of any bits, here and in `stochastic`: what is written makes it one.
    """
    if element.mantissa_bits == 23:
        q = x
    elif element.short_float32:
        q = _nearest_on_bits(x, element, ties, saturate)
    else:
        a = bounded(x, element, saturate)
        exponent = grid_exponent(a.to(tl.int32, bitcast=True), element)
        if ties == EVEN:
            big = exponent.to(tl.float32, bitcast=True) * 2.0 ** (23 - element.mantissa_bits)
            q = (a + big) - big
        else:
            spacing = exponent - (element.mantissa_bits << 23)
            steps = a * ((254 << 23) - spacing).to(tl.float32, bitcast=True)
            whole = steps.to(tl.int32).to(tl.float32)
            rest = steps - whole
            up = rest >= 0.5 if ties == AWAY else rest > 0.5
            q = (whole + up.to(tl.float32)) * spacing.to(tl.float32, bitcast=True)
            # NaN has no whole part; it comes back here
            q = q + (a - a)
        q = finished(q, x, element, saturate)
    return q


@triton.jit
def _nearest_on_bits(
    x: tl.tensor, element: tl.constexpr, ties: tl.constexpr, saturate: tl.constexpr
) -> tl.tensor:
    """Nearest for types whose codes are the leading bits of a float32; one NaN.

    The sign's bit is never reached: infinity has no mantissa that a sum could carry out of.
    """
    DROP: tl.constexpr = 23 - element.mantissa_bits
    BELOW_HALF: tl.constexpr = (1 << (DROP - 1)) - 1
    bits = x.to(tl.int32, bitcast=True)
    if ties == EVEN:
        out = bits + ((bits >> DROP) & 1) + BELOW_HALF
    else:
        out = bits + (BELOW_HALF + (1 if ties == AWAY else 0))
    out = out & (-(1 << DROP))
    if saturate:
        out = tl.minimum(out & MAGNITUDE, element.max_bits) | (bits & SIGN)
    return tl.where(is_number(x), out, NAN).to(tl.float32, bitcast=True)


@triton.jit
def stochastic(
    x: tl.tensor,
    random: tl.tensor,
    element: tl.constexpr,
    noise_bits: tl.constexpr,
    saturate: tl.constexpr,
) -> tl.tensor:
    """One of the two neighbours (`reference.round_stochastic`); `random` is int32 or uint32."""
    if element.short_float32:
        bits = x.to(tl.int32, bitcast=True)
        magnitude = bits & MAGNITUDE
        DROP: tl.constexpr = 23 - element.mantissa_bits
        dropped = (magnitude << (32 - DROP)).to(tl.uint32, bitcast=True)
        noise = random.to(tl.uint32) << (32 - noise_bits)
        # the sum of two 32-bit fractions carries where it wraps
        carry = (dropped + noise < dropped).to(tl.int32)
        q = tl.minimum(((magnitude >> DROP) + carry) << DROP, INFINITY)
        if saturate:
            q = tl.minimum(q, element.max_bits)
        out = tl.where(magnitude > INFINITY, NAN, q | (bits & SIGN)).to(tl.float32, bitcast=True)
    else:
        a = bounded(x, element, saturate)
        exponent = grid_exponent(a.to(tl.int32, bitcast=True), element)
        spacing = exponent - (element.mantissa_bits << 23)
        steps = a * ((254 << 23) - spacing).to(tl.float32, bitcast=True)
        if noise_bits == 8:
            whole = ((steps * 256.0).to(tl.int32) + random.to(tl.int32)) >> 8
        else:
            whole = steps.to(tl.int32)
            fraction = ((steps - whole.to(tl.float32)) * 4294967296.0).to(tl.uint32)
            whole += (random.to(tl.uint32) + fraction < fraction).to(tl.int32)
        # the largest number lies on the grid, so nothing goes beyond it
        q = whole.to(tl.float32) * spacing.to(tl.float32, bitcast=True)
        out = finished(q + (a - a), x, element, saturate)
    return out


@triton.jit
def encode(q: tl.tensor, element: tl.constexpr) -> tl.tensor:
    """int32 codes of numbers on the grid (`reference.encode`); NaN has no sign."""
    bits = q.to(tl.int32, bitcast=True)
    magnitude = bits & MAGNITUDE
    if not element.has_zero:
        exponent = magnitude >> 23
        code = tl.maximum(exponent + (element.bias - 127), 0)
        code = tl.where(exponent == 255, element.nan_code, code)
    else:
        if element.short_float32:
            code = magnitude >> (23 - element.mantissa_bits)
        elif element.bias > 0:
            # a code's fields are those of the value times 2^(bias - 127), also if subnormal
            value = tl.abs(q) * 2.0 ** (element.bias - 127)
            code = value.to(tl.int32, bitcast=True) >> (23 - element.mantissa_bits)
        else:
            exponent = grid_exponent(magnitude, element)
            reciprocal = (254 << 23) - (exponent - (element.mantissa_bits << 23))
            steps = (tl.abs(q) * reciprocal.to(tl.float32, bitcast=True)).to(tl.int32)
            binades = (exponent >> 23) - (127 + element.min_exponent)
            code = steps + (binades << element.mantissa_bits)
        if element.has_inf:
            code = tl.where(magnitude == INFINITY, element.inf_code, code)
        if element.sign_code != 0:
            code = code | ((bits >> (32 - element.bits)) & element.sign_code)
        code = tl.where(is_number(q), code, element.nan_code)
    return code


@triton.jit
def decode(code: tl.tensor, element: tl.constexpr) -> tl.tensor:
    """float32 values of int32 codes (`reference.decode`)."""
    if not element.has_zero:
        exponent = code + (127 - element.bias)
        # 2^-127 is subnormal
        bits = tl.where(exponent == 0, 1 << 22, exponent << 23)
        bits = tl.where(code == element.nan_code, NAN, bits) if element.nan_code != 0 else bits
    elif element.short_float32:
        bits = code << (23 - element.mantissa_bits)
        bits = tl.where((bits & MAGNITUDE) > INFINITY, NAN, bits)
    else:
        magnitude = code & ((1 << (element.bits - 1)) - 1) if element.sign_code != 0 else code
        if element.bias >= 0:
            # the fields in float32's places are the value times 2^(bias - 127), also if subnormal
            value = (magnitude << (23 - element.mantissa_bits)).to(tl.float32, bitcast=True)
            value = value * 2.0 ** (127 - element.bias)
        else:
            binade = tl.maximum(magnitude >> element.mantissa_bits, 1)
            steps = magnitude - ((binade - 1) << element.mantissa_bits)
            spacing = (binade + (127 - element.bias - element.mantissa_bits)) << 23
            value = steps.to(tl.float32) * spacing.to(tl.float32, bitcast=True)
        bits = value.to(tl.int32, bitcast=True)
        if element.has_inf:
            bits = tl.where(magnitude == element.inf_code, INFINITY, bits)
        if element.sign_code != 0:
            bits = bits | ((code << (32 - element.bits)) & SIGN)
        if element.nan_code != 0:
            LAST: tl.constexpr = element.inf_code if element.has_inf else element.max_code
            bits = tl.where(magnitude > LAST, NAN, bits)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def to_float32(raw: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Loaded elements (float32, or the bits of bf16 or fp16 as int16) as float32."""
    if dtype == 0:
        x = raw
    elif dtype == 1:
        x = (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        kind: tl.constexpr = FP16.value
        x = decode(raw.to(tl.int32) & 0xFFFF, kind)
    return x


@triton.jit
def rounded_to(x: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """The nearest numbers of a dtype, as float32."""
    if dtype == 0:
        q = x
    elif dtype == 1:
        kind: tl.constexpr = BF16.value
        q = nearest(x, kind, EVEN, False)
    else:
        kind: tl.constexpr = FP16.value
        q = nearest(x, kind, EVEN, False)
    return q


@triton.jit
def stored_as(x: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """What is written for float32 values: themselves with one NaN, or 16 bits as an integer."""
    if dtype == 0:
        out = one_nan(x)
    elif dtype == 1:
        kind: tl.constexpr = BF16.value
        out = (nearest(x, kind, EVEN, False).to(tl.int32, bitcast=True) >> 16).to(tl.int16)
    else:
        kind: tl.constexpr = FP16.value
        code = encode(nearest(x, kind, EVEN, False), kind)
        # torch's NaN, which is not the one with all bits set
        out = tl.where(is_number(x), code, 0x7E00).to(tl.int16)
    return out


@triton.jit
def round_nearest_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    count: tl.tensor,
    dtype: tl.constexpr,
    element: tl.constexpr,
    ties: tl.constexpr,
    saturate: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Elementwise, to float32."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = to_float32(tl.load(x_ptr + at, mask=at < count, other=0), dtype)
    q = one_nan(nearest(x, element, ties, saturate))
    tl.store(out_ptr + at, q, mask=at < count)


def takes(x: Tensor) -> bool:
    """Whether the kernel reads this tensor."""
    return readable(x) and x.dtype in DTYPES


def round_nearest(
    x: Tensor,
    element: ElementType,
    ties: Ties = Ties.EVEN,
    overflow: Overflow = Overflow.SATURATE,
) -> Tensor:
    """`reference.round_nearest` of float32, bf16 or fp16, contiguous; NaN becomes 0x7FC00000."""
    x = plain(x).contiguous()
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    # the interpreter's time is a program's, not an element's
    block = 131072 if INTERPRETED else 2048
    if x.numel():
        launch(
            round_nearest_kernel,
            triton.cdiv(x.numel(), block),
            (as_integers(x), out, x.numel()),
            dtype=DTYPES[x.dtype],
            element=Element.of(element),
            ties=int(ties),
            saturate=overflow == Overflow.SATURATE,
            BLOCK=block,
        )
    return out
