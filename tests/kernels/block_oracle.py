"""Quantization stated a second time, in numpy, from the published arithmetic.

Letters as in the kernels: M x K the matrix, R x C its blocks. Rounding is that of `oracle.py`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4lab.formats import (
    BlockFormat,
    BlockScale,
    ElementType,
    Level,
    Overflow,
    ScaleRule,
    Selection,
    Ties,
    Zeros,
)
from tests.kernels import oracle

F32 = NDArray[np.float32]
LIMIT = np.float32(3.4028234663852886e38)


class Quantized(NamedTuple):
    """Element values and block scales (as numbers), tensor scale, and dequantized values."""

    values: F32
    scales: F32
    tensor_scale: F32
    dequantized: F32


def f32(x: float) -> np.float32:
    return np.float32(x)


def rounded(
    x: F32, element: ElementType, ties: Ties = Ties.EVEN, overflow: Overflow = Overflow.SATURATE
) -> F32:
    return oracle.nearest(x.astype(np.float64), element, ties, overflow).astype(np.float32)


def sides(fmt: BlockFormat, shape: tuple[int, int]) -> tuple[int, int]:
    assert fmt.block is not None
    return fmt.block[0] or shape[0], fmt.block[1] or shape[1]


def padded(x: F32, fmt: BlockFormat) -> NDArray[np.float32]:
    """`[R, C, r, c]`."""
    r, c = sides(fmt, x.shape)  # type: ignore[arg-type]
    x = np.pad(x, ((0, -x.shape[0] % r), (0, -x.shape[1] % c)))
    return x.reshape(x.shape[0] // r, r, x.shape[1] // c, c).transpose(0, 2, 1, 3)


def cropped(blocks: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    R, C, r, c = blocks.shape
    return blocks.transpose(0, 2, 1, 3).reshape(R * r, C * c)[: shape[0], : shape[1]]


def spread(scales: NDArray[Any]) -> NDArray[Any]:
    return scales[:, :, None, None]


class Noise(NamedTuple):
    """Random integers of stochastic rounding, in blocks `[R, C, r, c]`, and how many bits."""

    blocks: NDArray[np.int64]
    bits: int


def quantize(
    x: F32, fmt: BlockFormat, random: NDArray[np.int64] | None = None, bits: int = 0
) -> Quantized:
    """Quantize a non-empty float32 matrix by a format with scales, to nearest or by `random`."""
    with np.errstate(all="ignore"):
        blocks = padded(x, fmt)
        noise = None if random is None else Noise(padded(random, fmt), bits)
        block_amax = np.abs(blocks).max(axis=(2, 3))
        if fmt.block_scale == BlockScale.POWER_OF_TWO:
            values, scales = power_of_two(blocks, block_amax, fmt, noise)
            outer, whole = np.zeros(0, np.float32), scales
        elif fmt.block_scale == BlockScale.ENCODE:
            values, scales = encode_first(blocks, block_amax, fmt, noise)
            outer, whole = np.zeros(0, np.float32), scales
        elif fmt.block_scale in OTHER_TOOLS:
            values, scales, outer, whole = OTHER_TOOLS[fmt.block_scale](
                blocks, block_amax, fmt, noise
            )
        else:
            values, scales, outer = two_level(blocks, block_amax, fmt, noise)
            whole = scales
            if fmt.level != Level.NONE:
                factor = f32(1 / (cap(fmt) * target(fmt)))
                whole = (scales * outer.reshape(-1, 1)) * factor
        shape = (x.shape[0], x.shape[1])
        unsigned = fmt.zeros in (Zeros.POSITIVE, Zeros.DECODED_POSITIVE)
        shown = np.where(values == 0, f32(0), values) if unsigned else values
        product = shown * spread(whole)
        if fmt.block_scale == BlockScale.FOUROVERSIX and outer.size:
            largest = f32(cap(fmt) * target(fmt))
            product = ((shown * spread(scales)) * outer.reshape(-1, 1, 1, 1)) / largest
        product = cropped(product, shape)
        return Quantized(cropped(values, shape), scales, outer, product)


def cap(fmt: BlockFormat) -> float:
    assert fmt.scale is not None
    return fmt.scale_cap or oracle.largest(fmt.scale)


def target(fmt: BlockFormat) -> float:
    return fmt.amax_target or oracle.largest(fmt.element)


def elements(scaled: F32, fmt: BlockFormat, noise: Noise | None) -> F32:
    if not fmt.keep_negative_zero:
        scaled = np.where(scaled == 0, f32(0), scaled)
    if noise is not None:
        exact = scaled.astype(np.float64)
        values = oracle.stochastic(exact, fmt.element, *noise, fmt.overflow).astype(np.float32)
    else:
        values = rounded(scaled, fmt.element, fmt.ties, fmt.overflow)
    if fmt.zeros == Zeros.POSITIVE:
        return np.where(values == 0, f32(0), values)
    if fmt.zeros == Zeros.NEGATIVE:
        return np.where(scaled == 0, f32(-0.0), values)
    return values


def two_level(
    blocks: F32, block_amax: F32, fmt: BlockFormat, noise: Noise | None
) -> tuple[F32, F32, F32]:
    """Transformer Engine's NVFP4 (its kernels' core and its Python reference)."""
    largest = f32(target(fmt))
    unlimited = fmt.block_scale == BlockScale.FOUROVERSIX
    limit = f32(np.inf) if unlimited else LIMIT
    if fmt.level == Level.NONE:
        amax, S = np.zeros(0, np.float32), np.ones((1, 1), np.float32)
    else:
        amax = block_amax.max(axis=1 if fmt.level == Level.ROW else None).reshape(-1)
        S = np.minimum(f32(cap(fmt)) * largest / amax, limit).reshape(-1, 1)
        S = S if unlimited else np.where(S == 0, f32(1), S)
    candidates = []
    for stretch in (1.5, 1.0) if fmt.selection != Selection.NONE else (1.0,):
        if fmt.block_scale == BlockScale.FOLDED:
            ideal = np.minimum(block_amax * (S * f32(1 / float(largest))), LIMIT)
        else:
            ratio = block_amax / largest
            if fmt.scale_precision.mantissa_bits != 23:
                ratio = rounded(ratio, fmt.scale_precision)
            ideal = np.where(unlimited & (block_amax == 0), f32(0), ratio * S)
        ideal = ideal * f32(stretch)
        scale = stored(ideal, fmt)
        scale = np.maximum(scale, f32(fmt.scale_floor))
        if fmt.zero_scale:
            scale = np.where(block_amax == 0, f32(fmt.zero_scale), scale)
        enc = np.minimum(f32(1) / (scale * (f32(1) / S)), limit)
        enc = np.where(unlimited & (scale == 0), f32(0), enc)
        values = elements(blocks * spread(enc), fmt, noise)
        candidates.append((values, scale))
    if len(candidates) == 1:
        return (*candidates[0], amax)
    outer = amax.reshape(-1, 1) if amax.size else np.ones((1, 1), np.float32)
    factor = f32(cap(fmt)) * largest if fmt.level != Level.NONE else f32(1)
    errors = [
        total_error(
            ((v * spread(s)) * spread(np.broadcast_to(outer, s.shape))) / factor - blocks, fmt
        )
        for v, s in candidates
    ]
    four = errors[0] < errors[1]
    values = np.where(spread(four), candidates[0][0], candidates[1][0])
    return values, np.where(four, candidates[0][1], candidates[1][1]), amax


def of_tensor(block_amax: F32, fmt: BlockFormat) -> F32:
    """The amax `[R, 1]` or `[1, 1]`."""
    return block_amax.max(axis=1 if fmt.level == Level.ROW else None).reshape(-1, 1)


def torchao(blocks: F32, block_amax: F32, fmt: BlockFormat, noise: Noise | None) -> Any:
    """`nvfp4_quantize` of torchao 0.18.0, by decode scales."""
    D = np.ones((1, 1), np.float32)
    if fmt.level != Level.NONE:
        D = of_tensor(block_amax, fmt) / f32(cap(fmt) * target(fmt))
    scale = (block_amax / f32(target(fmt))) / D
    scale = np.maximum(stored(scale, fmt), f32(fmt.scale_floor))
    values = elements(blocks * spread((f32(1) / D) / scale), fmt, noise)
    outer = D.reshape(-1) if fmt.level != Level.NONE else np.zeros(0, np.float32)
    return values, scale, outer, scale * D


def modelopt(blocks: F32, block_amax: F32, fmt: BlockFormat, noise: Noise | None) -> Any:
    """`NVFP4QTensor` of nvidia-modelopt 0.47.0, by decode scales."""
    D = np.ones((1, 1), np.float32)
    if fmt.level != Level.NONE:
        D = of_tensor(block_amax, fmt) / f32(target(fmt) * cap(fmt))
    ideal = block_amax / (f32(target(fmt)) * D)
    if fmt.zero_scale:
        ideal = np.where(ideal == 0, f32(fmt.zero_scale), ideal)
    scale = np.maximum(stored(ideal, fmt), f32(fmt.scale_floor))
    values = elements(blocks / spread(scale * D), fmt, noise)
    outer = D.reshape(-1) if fmt.level != Level.NONE else np.zeros(0, np.float32)
    return values, scale, outer, scale * D


def compressed_tensors(blocks: F32, block_amax: F32, fmt: BlockFormat, noise: Noise | None) -> Any:
    """`calculate_qparams` and `generate_gparam` of compressed-tensors 0.20.1, by encode scales."""
    narrow = fmt.scale_precision.mantissa_bits != 23
    S = np.ones((1, 1), np.float32)
    if fmt.level != Level.NONE:
        S = f32(1) / of_tensor(block_amax, fmt)
        for factor in (1.0, cap(fmt) * target(fmt)):
            S = S * f32(factor)
            if narrow:
                S = rounded(S, fmt.scale_precision, overflow=Overflow.SPECIAL)
        S = np.where(np.isfinite(S), S, f32(1))
    ratio = block_amax / f32(target(fmt))
    scale = stored(S * (rounded(ratio, fmt.scale_precision) if narrow else ratio), fmt)
    scale = np.maximum(scale, f32(fmt.scale_floor))
    if fmt.zero_scale:
        scale = np.where(scale == 0, f32(fmt.zero_scale), scale)
    values = elements(blocks / spread(scale / S), fmt, noise)
    outer = S.reshape(-1) if fmt.level != Level.NONE else np.zeros(0, np.float32)
    return values, scale, outer, scale / S


def ggml_scale(ideal: np.float32) -> float:
    """`ggml_fp32_to_ue4m3` of ggml d99724f, in integers and float32."""
    if not ideal > 0:
        return float(ideal) if np.isnan(ideal) else 0.0
    bits = int(np.minimum(ideal, f32(448)).view(np.uint32))
    power, fraction = (bits >> 23) - 127, (bits >> 20) & 7
    if power < -6:
        return min(int(ideal * f32(512) + f32(0.5)), 7) * 2.0**-9
    fraction += (bits >> 19) & 1
    return 448.0 if power + fraction // 8 >= 8 else math.ldexp(1 + fraction / 8, power)


def ggml(blocks: F32, block_amax: F32, fmt: BlockFormat, noise: Noise | None) -> Any:
    """`quantize_row_nvfp4_ref` of ggml d99724f; what is no number makes its block NaN here."""
    ideal = block_amax / f32(target(fmt))
    scale = np.vectorize(ggml_scale, otypes=[np.float32])(ideal)
    if noise is None:
        codebook = np.array(fmt.element.values(), np.float32)
        distances = np.abs(codebook * spread(scale)[..., None] - blocks[..., None])
        # of equal ones the first; one that is no number is never the least, unless it is the first
        distances[..., 1:][np.isnan(distances[..., 1:])] = np.inf
        first = np.isnan(distances[..., 0])
        values = np.where(first, f32(0), codebook[np.argmin(distances, axis=-1)])
    else:
        values = elements(blocks / spread(np.where(scale == 0, np.inf, scale)), fmt, noise)
    return values, scale, np.zeros(0, np.float32), scale


def qwantize(blocks: F32, block_amax: F32, fmt: BlockFormat, noise: Noise | None) -> Any:
    """`nvfp4_naive` and `nvfp4_optimal` of qwantize 0.1.1 (without its shortcuts)."""

    def tried(scale: F32) -> tuple[F32, F32]:
        scaled = np.where(blocks == 0, blocks, blocks / spread(scale))
        values = elements(scaled, fmt, noise)
        return values, total_error(values * spread(scale) - blocks, fmt)

    scale = stored(block_amax / f32(target(fmt)), fmt)
    scale = np.maximum(scale, f32(fmt.scale_floor))
    if fmt.zero_scale:
        scale = np.where(block_amax == 0, f32(fmt.zero_scale), scale)
    values, error = tried(scale)
    if fmt.selection == Selection.SEARCH:
        assert fmt.scale is not None
        useful = ~(total_error(blocks, fmt) <= error)
        for candidate in sorted(v for v in set(fmt.scale.values()) if 0 < v < np.inf):
            other = np.full_like(scale, candidate)
            trial, trial_error = tried(other)
            better = useful & (trial_error < error)
            values = np.where(spread(better), trial, values)
            scale, error = np.where(better, other, scale), np.where(better, trial_error, error)
    return values, scale, np.zeros(0, np.float32), scale


OTHER_TOOLS = {
    BlockScale.TORCHAO: torchao,
    BlockScale.MODELOPT: modelopt,
    BlockScale.COMPRESSED_TENSORS: compressed_tensors,
    BlockScale.GGML: ggml,
    BlockScale.QWANTIZE: qwantize,
}


def total_error(difference: F32, fmt: BlockFormat) -> F32:
    """Columns from left to right, then the rows in halves."""
    if fmt.selection == Selection.ABS_MAX:
        return np.abs(difference).max(axis=(2, 3))
    squared = fmt.selection in (Selection.MSE, Selection.SEARCH)
    error = difference * difference if squared else np.abs(difference)
    rows = error[..., 0]
    for column in range(1, error.shape[3]):
        rows = rows + error[..., column]
    while rows.shape[2] > 1:
        half = rows.shape[2] // 2
        rows = rows[..., :half] + rows[..., half:]
    return rows[..., 0]


def stored(ideal: F32, fmt: BlockFormat) -> F32:
    assert fmt.scale is not None
    if fmt.scale.mantissa_bits == 23:
        return ideal
    return rounded(ideal, fmt.scale, fmt.scale_ties)


def exponent(amax: float, fmt: BlockFormat) -> int:
    """k of the block scale 2^k, before it is limited to the range of the scale type."""
    largest = oracle.largest(fmt.element)
    top = math.frexp(largest)[1] - 1
    if fmt.scale_rule in (ScaleRule.ROUND_UP, ScaleRule.NEAREST):
        amax, top = float(f32(amax) / f32(largest)), 0
        if amax == 0:
            return -(10**6)
    half, above = math.frexp(amax)
    if fmt.scale_rule in (ScaleRule.EVEN, ScaleRule.EVEN_FP4):
        # Python rounds halves to even
        fp4 = fmt.scale_rule == ScaleRule.EVEN_FP4
        steps = 2 << (1 if fp4 else fmt.element.mantissa_bits)
        half, above = math.frexp(math.ldexp(round(half * steps) / steps, above))
    k = above - 1
    return {
        ScaleRule.FLOOR: k,
        ScaleRule.EVEN: k,
        ScaleRule.EVEN_FP4: k,
        ScaleRule.CEIL: k + (half > 0.5),
        ScaleRule.ROUND_UP: k + (half > 0.5),
        # a value halfway between 2^k and 2^(k+1) goes up
        ScaleRule.NEAREST: k + (half >= 0.75),
    }[fmt.scale_rule] - top


def power_of_two(
    blocks: F32, block_amax: F32, fmt: BlockFormat, noise: Noise | None
) -> tuple[F32, F32]:
    """OCP MX: one power of two for a block."""
    assert fmt.scale is not None
    low, high = -fmt.scale.bias, 2**fmt.scale.exponent_bits - 2 - fmt.scale.bias
    k = np.zeros(block_amax.shape, np.int64)
    for index, amax in np.ndenumerate(block_amax):
        if np.isfinite(amax):
            k[index] = np.clip(exponent(float(amax), fmt) if amax else low, low, high)
    finite = np.isfinite(block_amax)
    scales = np.where(finite, np.ldexp(1.0, k), np.nan).astype(np.float32)
    exact = blocks.astype(np.float64) * spread(np.where(finite, np.ldexp(1.0, -k), np.nan))
    return elements(exact.astype(np.float32), fmt, noise), scales


def encode_first(
    blocks: F32, block_amax: F32, fmt: BlockFormat, noise: Noise | None
) -> tuple[F32, F32]:
    """FP8 with float32 scales: x * (M / amax), stored amax / M as a reciprocal."""
    multiplier = np.minimum(f32(oracle.largest(fmt.element)) / block_amax, LIMIT)
    if fmt.scale_rule == ScaleRule.ROUND_UP:
        mantissa, power = np.frexp(multiplier)
        floor = np.where(mantissa == 0, 0, np.ldexp(0.5, power)).astype(np.float32)
        multiplier = np.where(np.isnan(multiplier), multiplier, floor)
    if fmt.zero_scale:
        multiplier = np.where(block_amax == 0, f32(1 / fmt.zero_scale), multiplier)
    return elements(blocks * spread(multiplier), fmt, noise), f32(1) / multiplier
