"""Block scales: from the largest magnitudes to stored scales and element multipliers.

`fp4lab.formats.scaling` states the arithmetic; here each branch is that text in float32. Everything
is computed without a graph. NaN travels: a NaN in a block makes its scale NaN, a NaN in the tensor
makes the tensor scale NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fp4lab.formats import (
    BlockFormat,
    BlockScale,
    Direction,
    Level,
    Overflow,
    ScaleRule,
    Ties,
)
from fp4lab.kernels.minifloat.reference import FLOAT_MAX, encode, round_nearest


class Scales(NamedTuple):
    """Scales of every block, shaped like the block amax they came from.

    `decode` is the stored block scale as float32 (without the second level); an element x becomes
    round(x * `factor`), or round(x / `factor`) where it `divides`.
    """

    decode: Tensor
    factor: Tensor
    divides: bool = False


def divided(x: Tensor, constant: float) -> Tensor:
    """x / constant, the same on every device: CUDA multiplies by the reciprocal of a number."""
    return x / torch.full((), constant, dtype=torch.float32, device=x.device)


def encode_scale(amax: Tensor, fmt: BlockFormat) -> Tensor:
    """Second-level encode scale S = C*M / amax: at most FLT_MAX, 1 where it would be 0.

    FOUROVERSIX has neither limit.
    """
    scale = torch.div(fmt.amax_factor, amax)
    if fmt.block_scale == BlockScale.FOUROVERSIX:
        return scale
    scale.clamp_(max=FLOAT_MAX)
    return torch.where(scale == 0, 1.0, scale)


def tensor_scale(amax: Tensor, fmt: BlockFormat) -> Tensor:
    """What the second level stores for an amax, in the direction of the format."""
    if fmt.direction == Direction.DECODE:
        return divided(amax, fmt.amax_factor)
    if fmt.direction == Direction.ENCODE:
        # that tool's Python writes number / tensor, which torch takes for a reciprocal
        kind, special = fmt.scale_precision, Overflow.SPECIAL
        inverse = round_nearest(amax.reciprocal(), kind, overflow=special)
        scale = round_nearest(inverse * fmt.amax_factor, kind, overflow=special)
        return torch.where(scale.isfinite(), scale, 1.0)
    return amax


def block_scales(block_amax: Tensor, outer: Tensor, fmt: BlockFormat) -> Scales:
    """Scales of blocks with the largest magnitudes `block_amax`.

    Args:
        block_amax: float32, any shape.
        outer: `tensor_scale` of the tensor or row, which broadcasts against it; 1 without a second
            level.
        fmt: a format with block scales.
    """
    if fmt.block_scale == BlockScale.POWER_OF_TWO:
        return _power_of_two(block_amax, fmt)
    if fmt.block_scale == BlockScale.ENCODE:
        return _encode_first(block_amax, fmt)
    return two_level(block_amax, outer, fmt)


def two_level(block_amax: Tensor, outer: Tensor, fmt: BlockFormat, stretch: float = 1.0) -> Scales:
    """NVFP4's scales; `stretch` multiplies the ideal block scale (1.5 maps the largest to 4)."""
    if fmt.direction == Direction.AMAX and fmt.level != Level.NONE:
        outer = encode_scale(outer, fmt)
    ideal = _ideal(block_amax, outer, fmt)
    decode = _rounded(ideal if stretch == 1.0 else ideal * stretch, block_amax, fmt)
    divisor = _divisor(decode, outer, fmt.block_scale)
    if divisor is not None:
        return Scales(decode, divisor, divides=True)
    if fmt.block_scale == BlockScale.TORCHAO:
        return Scales(decode, outer.reciprocal() / decode)
    if fmt.block_scale == BlockScale.FOUROVERSIX:
        factor = (outer.reciprocal() * decode).reciprocal_()
        return Scales(decode, torch.where(decode == 0, 0.0, factor))
    inverse = outer.reciprocal().clamp_(max=FLOAT_MAX)
    return Scales(decode, (decode * inverse).reciprocal_().clamp_(max=FLOAT_MAX))


def _divisor(decode: Tensor, outer: Tensor, order: BlockScale) -> Tensor | None:
    """What divides elements, in the orders that divide them."""
    if order == BlockScale.MODELOPT:
        return decode * outer
    if order == BlockScale.COMPRESSED_TENSORS:
        return decode / outer
    if order == BlockScale.GGML:
        return torch.where(decode == 0, torch.inf, decode)
    return decode if order == BlockScale.QWANTIZE else None


def _ideal(block_amax: Tensor, outer: Tensor, fmt: BlockFormat) -> Tensor:
    """The block scale before it is rounded; `outer` is S, or D where that is stored."""
    if fmt.block_scale == BlockScale.FOLDED:
        return (block_amax * (outer * (1.0 / fmt.target))).clamp_(max=FLOAT_MAX)
    if fmt.block_scale == BlockScale.MODELOPT:
        return block_amax / (outer * fmt.target)
    ratio = divided(block_amax, fmt.target)
    if fmt.block_scale in (BlockScale.GGML, BlockScale.QWANTIZE):
        return ratio
    if fmt.block_scale == BlockScale.TORCHAO:
        return ratio / outer
    ideal = round_nearest(ratio, fmt.scale_precision).mul_(outer)
    if fmt.block_scale == BlockScale.FOUROVERSIX:
        # 0 * infinity, of a tensor of zeros
        return torch.where(block_amax == 0, 0.0, ideal)
    return ideal


def _rounded(ideal: Tensor, block_amax: Tensor, fmt: BlockFormat) -> Tensor:
    """In the scale type, with the floor and what stands for a zero."""
    assert fmt.scale is not None
    if fmt.block_scale == BlockScale.GGML:
        return _ggml_rounded(ideal, fmt)
    decode = round_nearest(ideal, fmt.scale, fmt.scale_ties)
    if fmt.scale_floor:
        decode = decode.clamp(min=fmt.scale_floor)
    if fmt.zero_scale:
        zero = {BlockScale.COMPRESSED_TENSORS: decode, BlockScale.MODELOPT: ideal}
        is_zero = zero.get(fmt.block_scale, block_amax) == 0
        decode = torch.where(is_zero, fmt.zero_scale, decode)
    return decode


def _ggml_rounded(ideal: Tensor, fmt: BlockFormat) -> Tensor:
    """E4M3 as ggml rounds to it: halves up, no step from 7 to 8 below 2^-6, and 448 from 256 on."""
    assert fmt.scale is not None
    normal = round_nearest(ideal, fmt.scale, Ties.AWAY)
    top = 2.0**fmt.scale.max_exponent
    normal = torch.where(normal >= top, fmt.scale.max_value, normal)
    step = fmt.scale.min_subnormal
    below = (ideal * (1.0 / step) + 0.5).floor_().clamp_(max=2.0**fmt.scale.mantissa_bits - 1)
    return torch.where(ideal < fmt.scale.min_normal, below * step, normal)


def decoded(values: Tensor, decode: Tensor, outer: Tensor, fmt: BlockFormat) -> Tensor:
    """Element values times both scales, in the order of the format's tool."""
    if fmt.level == Level.NONE:
        return values * decode
    if fmt.block_scale == BlockScale.FOUROVERSIX:
        return divided((values * decode) * outer, fmt.amax_factor)
    if fmt.direction == Direction.ENCODE:
        return values * (decode / outer)
    if fmt.direction == Direction.DECODE:
        return values * (decode * outer)
    return values * (decode * outer).mul_(1.0 / fmt.amax_factor)


def _power_of_two(block_amax: Tensor, fmt: BlockFormat) -> Scales:
    """MX: exponents by the scale rule, in the scale's range; NaN and infinity make a block NaN."""
    assert fmt.scale is not None
    element, scale = fmt.element, fmt.scale
    from_largest = fmt.scale_rule in (ScaleRule.ROUND_UP, ScaleRule.NEAREST)
    ideal = block_amax
    if from_largest:
        # infinite where the largest element is below 1, and frexp does not define that exponent;
        # scales end before 2^128 anyway
        ideal = divided(block_amax, element.max_value).clamp_(max=FLOAT_MAX)
    # ideal = fraction * 2^exponent with a fraction in [0.5, 1): exactly 0.5 is a power of two
    fraction, exponent = torch.frexp(ideal)
    next_power_from = {
        ScaleRule.FLOOR: 1.0,
        ScaleRule.EVEN: 1.0 - 2.0 ** -(element.mantissa_bits + 2),
        ScaleRule.EVEN_FP4: 0.875,
        ScaleRule.NEAREST: 0.75,
    }.get(fmt.scale_rule)
    up = fraction > 0.5 if next_power_from is None else fraction >= next_power_from
    exponent = exponent - 1 + up.to(torch.int32) - (0 if from_largest else element.max_exponent)
    exponent = torch.where(ideal == 0, scale.min_exponent, exponent)
    exponent.clamp_(min=scale.min_exponent, max=scale.max_exponent)
    nan = ~block_amax.isfinite()
    decode = torch.where(nan, float("nan"), exp2(exponent))
    return Scales(decode, torch.where(nan, float("nan"), exp2(-exponent)))


def exp2(exponent: Tensor) -> Tensor:
    """2^n as float32, exactly, from int32 n in [-127, 127] (2^-127 is subnormal)."""
    subnormal = 1 << 22
    return torch.where(exponent == -127, subnormal, (exponent + 127) << 23).view(torch.float32)


def _encode_first(block_amax: Tensor, fmt: BlockFormat) -> Scales:
    """FP8 with float32 scales: multiplier M / amax (at most FLT_MAX), stored its reciprocal."""
    multiplier = torch.div(fmt.element.max_value, block_amax).clamp_(max=FLOAT_MAX)
    if fmt.scale_rule == ScaleRule.ROUND_UP:
        # rounding the multiplier down rounds the stored scale up; infinity's stays 0
        floor = (multiplier.view(torch.int32) & 0x7F800000).view(torch.float32)
        multiplier = torch.where(multiplier.isnan(), multiplier, floor)
    if fmt.zero_scale:
        multiplier = torch.where(block_amax == 0, 1.0 / fmt.zero_scale, multiplier)
    return Scales(multiplier.reciprocal(), multiplier)


def stored(decode: Tensor, fmt: BlockFormat) -> Tensor:
    """Block scales as they are kept: bytes of the scale type, or float32."""
    assert fmt.scale is not None
    return decode if fmt.scale.mantissa_bits == 23 else encode(decode, fmt.scale)
