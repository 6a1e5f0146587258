# mypy: disable-error-code="untyped-decorator"
"""Block scales on a tile: `scales.py` in Triton, the same arithmetic in the same order."""

from __future__ import annotations

import triton
import triton.language as tl

from fp4lab.formats import BlockScale, Level, ScaleRule
from fp4lab.kernels.minifloat.reference import FLOAT_MAX
from fp4lab.kernels.minifloat.triton import (
    EVEN,
    INFINITY,
    MAGNITUDE,
    NAN,
    decode,
    encode,
    nearest,
    one_nan,
)

LARGEST = tl.constexpr(FLOAT_MAX)
FOLDED = tl.constexpr(int(BlockScale.FOLDED))
POWER_OF_TWO = tl.constexpr(int(BlockScale.POWER_OF_TWO))
ENCODE = tl.constexpr(int(BlockScale.ENCODE))
NO_LEVEL = tl.constexpr(int(Level.NONE))
NEAREST = tl.constexpr(int(ScaleRule.NEAREST))
FLOOR = tl.constexpr(int(ScaleRule.FLOOR))
ROUND_UP = tl.constexpr(int(ScaleRule.ROUND_UP))
EVEN_RULE = tl.constexpr(int(ScaleRule.EVEN))


@triton.jit
def at_most_largest(x: tl.tensor) -> tl.tensor:
    """x, infinity replaced by float32's largest number; NaN stays."""
    return tl.where(x > LARGEST, LARGEST, x)


@triton.jit
def two_level(
    block_amax: tl.tensor, outer_amax: tl.tensor, plan: tl.constexpr, stretch: tl.constexpr
) -> tl.tensor:
    """Stored scales and multipliers of NVFP4; `stretch` multiplies the ideal block scale."""
    if plan.level != NO_LEVEL:
        outer = tl.full(outer_amax.shape, plan.amax_factor, tl.float32)
        outer = at_most_largest(tl.div_rn(outer, outer_amax))
        outer = tl.where(outer == 0.0, 1.0, outer)
    else:
        outer = outer_amax
    if plan.block_scale == FOLDED:
        ideal = at_most_largest(block_amax * (outer * plan.inverse_target))
    else:
        precision: tl.constexpr = plan.scale_precision
        ratio = tl.div_rn(block_amax, tl.full(block_amax.shape, plan.target, tl.float32))
        ideal = nearest(ratio, precision, EVEN, True) * outer
    if stretch != 1.0:
        ideal = ideal * stretch
    scale: tl.constexpr = plan.scale
    stored = nearest(ideal, scale, plan.scale_ties, True)
    if plan.scale_floor != 0.0:
        stored = tl.where(stored < plan.scale_floor, plan.scale_floor, stored)
    if plan.zero_scale != 0.0:
        stored = tl.where(block_amax == 0.0, plan.zero_scale, stored)
    inverse = at_most_largest(tl.div_rn(tl.full(outer.shape, 1.0, tl.float32), outer))
    product = stored * inverse
    multiplier = tl.div_rn(tl.full(product.shape, 1.0, tl.float32), product)
    return stored, at_most_largest(multiplier)


@triton.jit
def power_of_two(block_amax: tl.tensor, plan: tl.constexpr) -> tl.tensor:
    """Scales of MX by the scale rule; NaN and infinity make a block NaN."""
    FROM_LARGEST: tl.constexpr = plan.scale_rule == ROUND_UP or plan.scale_rule == NEAREST
    if FROM_LARGEST:
        ideal = tl.div_rn(block_amax, tl.full(block_amax.shape, plan.max_value, tl.float32))
    else:
        ideal = block_amax
    bits = ideal.to(tl.int32, bitcast=True)
    # a subnormal number times 2^32 has an exponent field
    lifted = (ideal * 4294967296.0).to(tl.int32, bitcast=True)
    subnormal = bits < 0x00800000
    exponent = tl.where(subnormal, (lifted >> 23) - 32, bits >> 23) - 127
    mantissa = tl.where(subnormal, lifted, bits) & 0x007FFFFF
    if plan.scale_rule == FLOOR:
        exponent = exponent - plan.element.max_exponent
    elif plan.scale_rule == EVEN_RULE:
        NEXT_FROM: tl.constexpr = (1 << 23) - (1 << (22 - plan.element.mantissa_bits))
        exponent = exponent + (mantissa >= NEXT_FROM).to(tl.int32) - plan.element.max_exponent
    elif plan.scale_rule == NEAREST:
        exponent = exponent + (mantissa >= 0x00400000).to(tl.int32)
    else:
        exponent = exponent + (mantissa > 0).to(tl.int32)
        if not FROM_LARGEST:
            exponent = exponent - plan.element.max_exponent
    LOW: tl.constexpr = plan.scale.min_exponent
    HIGH: tl.constexpr = plan.scale.max_exponent
    exponent = tl.minimum(tl.maximum(exponent, LOW), HIGH)
    exponent = tl.where(ideal == 0.0, LOW, exponent)
    special = (block_amax.to(tl.int32, bitcast=True) & MAGNITUDE) >= INFINITY
    stored = tl.where(special, NAN, _exp2_bits(exponent))
    multiplier = tl.where(special, NAN, _exp2_bits(-exponent))
    return stored.to(tl.float32, bitcast=True), multiplier.to(tl.float32, bitcast=True)


@triton.jit
def _exp2_bits(exponent: tl.tensor) -> tl.tensor:
    """Bits of 2^n, n from -127 (subnormal) to 127."""
    return tl.where(exponent == -127, 1 << 22, (exponent + 127) << 23)


@triton.jit
def encode_first(block_amax: tl.tensor, plan: tl.constexpr) -> tl.tensor:
    """FP8 with float32 scales: multiplier M / amax, stored its reciprocal."""
    largest = tl.full(block_amax.shape, plan.max_value, tl.float32)
    multiplier = at_most_largest(tl.div_rn(largest, block_amax))
    if plan.scale_rule == ROUND_UP:
        # rounding the multiplier down rounds the stored scale up
        bits = multiplier.to(tl.int32, bitcast=True)
        bits = tl.where((bits & MAGNITUDE) > INFINITY, NAN, bits & INFINITY)
        multiplier = bits.to(tl.float32, bitcast=True)
    if plan.zero_scale != 0.0:
        multiplier = tl.where(block_amax == 0.0, plan.inverse_zero_scale, multiplier)
    return tl.div_rn(tl.full(block_amax.shape, 1.0, tl.float32), multiplier), multiplier


@triton.jit
def block_scales(
    block_amax: tl.tensor, outer_amax: tl.tensor, plan: tl.constexpr, stretch: tl.constexpr
) -> tl.tensor:
    """What is stored for every block (as float32) and what its elements are multiplied by."""
    if plan.block_scale == POWER_OF_TWO:
        stored, multiplier = power_of_two(block_amax, plan)
    elif plan.block_scale == ENCODE:
        stored, multiplier = encode_first(block_amax, plan)
    else:
        stored, multiplier = two_level(block_amax, outer_amax, plan, stretch)
    return stored, multiplier


@triton.jit
def scale_codes(stored: tl.tensor, scale: tl.constexpr) -> tl.tensor:
    """Block scales as they are kept: int32 codes of the scale type, or float32."""
    return one_nan(stored) if scale.mantissa_bits == 23 else encode(stored, scale)


@triton.jit
def scale_values(codes: tl.tensor, scale: tl.constexpr) -> tl.tensor:
    """Inverse of `scale_codes`, from what was loaded."""
    if scale.mantissa_bits == 23:
        values = one_nan(codes)
    else:
        values = decode(codes.to(tl.int32) & ((1 << scale.bits) - 1), scale)
    return values
