# mypy: disable-error-code="untyped-decorator, no-redef"
"""Rounding to any element type, codes and their values, on tiles: `reference.py` in Triton.

All arithmetic is float32 and integer. Where the reference divides by a grid spacing, a power of two
from 2^-126 to 2^103, its reciprocal multiplies: both round the same real number. Results hold one
NaN, 0x7FC00000.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fp4lab.formats import BF16_ELEMENT, FP16_ELEMENT, ElementType, Overflow, Ties
from fp4lab.kernels.triton.constants import DTYPES, Element
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
def one_nan(x: tl.tensor) -> tl.tensor:
    """x, with every NaN the same."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where((bits & MAGNITUDE) > INFINITY, NAN, bits).to(tl.float32, bitcast=True)


@triton.jit
def grid_exponent(magnitude: tl.tensor, element: tl.constexpr) -> tl.tensor:
    """Exponent bits, still shifted by 23, of the binade whose spacing applies to a magnitude."""
    return tl.maximum(magnitude & INFINITY, (127 + element.min_exponent) << 23)


@triton.jit
def bounded(magnitude: tl.tensor, element: tl.constexpr, saturate: tl.constexpr) -> tl.tensor:
    """Bits of |x|, bounded so that the rounding stays in range; NaN stays NaN."""
    LIMIT: tl.constexpr = element.max_bits if saturate else element.beyond_bits
    return tl.where(magnitude > INFINITY, magnitude, tl.minimum(magnitude, LIMIT))


@triton.jit
def finished(
    q: tl.tensor, bits: tl.tensor, element: tl.constexpr, saturate: tl.constexpr
) -> tl.tensor:
    """Magnitudes q with the sign of x: what is beyond the largest becomes special, NaN the one."""
    out = q.to(tl.int32, bitcast=True)
    if not saturate:
        too_large = (out > element.max_bits) & (out <= INFINITY)
        out = tl.where(too_large, element.special_bits, out)
    out = tl.where((out & MAGNITUDE) <= INFINITY, out | (bits & SIGN), NAN)
    return out.to(tl.float32, bitcast=True)


@triton.jit
def nearest(
    x: tl.tensor, element: tl.constexpr, ties: tl.constexpr, saturate: tl.constexpr
) -> tl.tensor:
    """The nearest number of the element type, as float32 (`reference.round_nearest`)."""
    if element.mantissa_bits == 23:
        q = one_nan(x)
    elif element.short_float32:
        q = _nearest_on_bits(x, element, ties, saturate)
    else:
        bits = x.to(tl.int32, bitcast=True)
        a_bits = bounded(bits & MAGNITUDE, element, saturate)
        a = a_bits.to(tl.float32, bitcast=True)
        exponent = grid_exponent(a_bits, element)
        if ties == EVEN:
            big = (exponent + ((23 - element.mantissa_bits) << 23)).to(tl.float32, bitcast=True)
            q = (a + big) - big
        else:
            spacing = exponent - (element.mantissa_bits << 23)
            steps = a * ((254 << 23) - spacing).to(tl.float32, bitcast=True)
            whole = steps.to(tl.int32).to(tl.float32)
            rest = steps - whole
            up = rest >= 0.5 if ties == AWAY else rest > 0.5
            q = (whole + up.to(tl.float32)) * spacing.to(tl.float32, bitcast=True)
            q = tl.where(a_bits > INFINITY, a, q)
        q = finished(q, bits, element, saturate)
    return q


@triton.jit
def _nearest_on_bits(
    x: tl.tensor, element: tl.constexpr, ties: tl.constexpr, saturate: tl.constexpr
) -> tl.tensor:
    """Nearest for types whose codes are the leading bits of a float32."""
    DROP: tl.constexpr = 23 - element.mantissa_bits
    BELOW_HALF: tl.constexpr = (1 << (DROP - 1)) - 1
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & MAGNITUDE
    # a NaN's bits could run over into the sign
    finite = tl.minimum(magnitude, INFINITY)
    if ties == EVEN:
        rounded = finite + ((finite >> DROP) & 1) + BELOW_HALF
    else:
        rounded = finite + (BELOW_HALF + (1 if ties == AWAY else 0))
    rounded = rounded & (-(1 << DROP))
    if saturate:
        rounded = tl.minimum(rounded, element.max_bits)
    out = tl.where(magnitude > INFINITY, NAN, rounded | (bits & SIGN))
    return out.to(tl.float32, bitcast=True)


@triton.jit
def stochastic(
    x: tl.tensor,
    random: tl.tensor,
    element: tl.constexpr,
    noise_bits: tl.constexpr,
    saturate: tl.constexpr,
) -> tl.tensor:
    """One of the two neighbours (`reference.round_stochastic`); `random` is int32 or uint32."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & MAGNITUDE
    if element.short_float32:
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
        a_bits = bounded(magnitude, element, saturate)
        a = a_bits.to(tl.float32, bitcast=True)
        spacing = grid_exponent(a_bits, element) - (element.mantissa_bits << 23)
        steps = a * ((254 << 23) - spacing).to(tl.float32, bitcast=True)
        if noise_bits == 8:
            whole = ((steps * 256.0).to(tl.int32) + random.to(tl.int32)) >> 8
        else:
            whole = steps.to(tl.int32)
            fraction = ((steps - whole.to(tl.float32)) * 4294967296.0).to(tl.uint32)
            whole += (random.to(tl.uint32) + fraction < fraction).to(tl.int32)
        q = whole.to(tl.float32) * spacing.to(tl.float32, bitcast=True)
        if saturate:
            q_bits = tl.minimum(q.to(tl.int32, bitcast=True), element.max_bits)
            q = q_bits.to(tl.float32, bitcast=True)
        out = finished(tl.where(a_bits > INFINITY, a, q), bits, element, saturate)
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
        else:
            exponent = grid_exponent(magnitude, element)
            reciprocal = (254 << 23) - (exponent - (element.mantissa_bits << 23))
            finite = tl.where(magnitude < INFINITY, magnitude, 0).to(tl.float32, bitcast=True)
            steps = (finite * reciprocal.to(tl.float32, bitcast=True)).to(tl.int32)
            binades = (exponent >> 23) - (127 + element.min_exponent)
            code = steps + (binades << element.mantissa_bits)
        code = tl.where(magnitude == INFINITY, element.inf_code, code)
        code = tl.where(magnitude > INFINITY, element.nan_code, code)
        if element.sign_code != 0:
            negative = (bits < 0) & (magnitude <= INFINITY)
            code = code | tl.where(negative, element.sign_code, 0)
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
            bits = bits | tl.where((code & element.sign_code) != 0, SIGN, 0)
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
        out = tl.where((x.to(tl.int32, bitcast=True) & MAGNITUDE) > INFINITY, 0x7E00, code)
        out = out.to(tl.int16)
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
    tl.store(out_ptr + at, nearest(x, element, ties, saturate), mask=at < count)


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
