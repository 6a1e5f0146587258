"""Elements of blocks whose scales are known, and the choice among several scales.

Letters as in `reference.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fp4lab.formats import BlockFormat, BlockScale, Selection, Zeros
from fp4lab.kernels.minifloat.reference import round_nearest, round_stochastic
from fp4lab.kernels.quantize.scales import Scales, block_scales, divided, two_level


def scaled_and_rounded(
    x_RrCc: Tensor, block_amax: Tensor, outer: Tensor, fmt: BlockFormat, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Element values and block scales of a format with block scales.

    Args:
        x_RrCc: float32 blocks.
        block_amax: their largest magnitudes `[R, 1, C, 1]`.
        outer: what the second level stores, which broadcasts; 1 without one.
        fmt: the format.
        noise: as in `reference.quantize_blocks`, in blocks.
    """
    if fmt.selection == Selection.SEARCH:
        return _searched(x_RrCc, block_amax, outer, fmt, noise)
    if fmt.selection != Selection.NONE:
        return _four_over_six(x_RrCc, block_amax, outer, fmt, noise)
    scales = block_scales(block_amax, outer, fmt)
    return _scaled(x_RrCc, scales, fmt, noise), scales.decode


def rounded(x: Tensor, fmt: BlockFormat, noise: Tensor | None) -> Tensor:
    """To the format's element type, to nearest or by noise."""
    if noise is None:
        return round_nearest(x, fmt.element, fmt.ties, fmt.overflow)
    bits = 8 if noise.dtype == torch.uint8 else 32
    return round_stochastic(x, fmt.element, noise, bits, fmt.overflow)


def _scaled(x_RrCc: Tensor, scales: Scales, fmt: BlockFormat, noise: Tensor | None) -> Tensor:
    if fmt.block_scale == BlockScale.GGML and noise is None:
        return _least_distance(x_RrCc, scales.decode, fmt)
    scaled = x_RrCc / scales.factor if scales.divides else x_RrCc * scales.factor
    if fmt.block_scale == BlockScale.QWANTIZE:
        # a block scale of 0 makes other numbers infinite, but zeros stay
        scaled = torch.where(x_RrCc == 0, x_RrCc, scaled)
    if not fmt.keep_negative_zero:
        # turns -0 (and products that underflow to it) into +0, and nothing else
        scaled += 0.0
    values = rounded(scaled, fmt, noise)
    if fmt.zeros == Zeros.POSITIVE:
        return values + 0.0
    if fmt.zeros == Zeros.NEGATIVE:
        return torch.where(scaled == 0, -0.0, values)
    return values


def _least_distance(x_RrCc: Tensor, decode_R1C1: Tensor, fmt: BlockFormat) -> Tensor:
    """The first code, in code order, with the least |code * s - x| in float32.

    Halves go to zero, zeros are +0, and x so large that no code changes the distance is 0.
    """
    values = torch.zeros_like(x_RrCc)
    least = x_RrCc.abs()
    for code in range(1, 1 << fmt.element.bits):
        value = fmt.element.decode(code)
        distance = (value * decode_R1C1 - x_RrCc).abs_()
        nearer = distance < least
        values = torch.where(nearer, value, values)
        least = torch.where(nearer, distance, least)
    return values


def _four_over_six(
    x_RrCc: Tensor, block_amax: Tensor, outer: Tensor, fmt: BlockFormat, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Per block the better of mapping its amax to 6 or to 4, by the error that `fmt` names.

    Errors are summed over the columns from left to right, over the rows in halves (8, 4, 2, 1), in
    float32; a tie keeps 6.
    """
    candidates = []
    for stretch in (1.5, 1.0):
        scales = two_level(block_amax, outer, fmt, stretch)
        values = _scaled(x_RrCc, scales, fmt, noise)
        difference = divided((values * scales.decode) * outer, fmt.amax_factor).sub_(x_RrCc)
        candidates.append((values, scales.decode, _error(difference, fmt.selection)))
    (values4, decode4, error4), (values6, decode6, error6) = candidates
    pick4 = error4 < error6
    return torch.where(pick4, values4, values6), torch.where(pick4, decode4, decode6)


def _error(difference_RrCc: Tensor, selection: Selection) -> Tensor:
    """Of every block, `[R, 1, C, 1]`."""
    if selection == Selection.ABS_MAX:
        return difference_RrCc.abs().amax(dim=(1, 3), keepdim=True)
    squared = selection != Selection.MAE
    return _sum_block(difference_RrCc.square() if squared else difference_RrCc.abs())


def _sum_block(error_RrCc: Tensor) -> Tensor:
    total = torch.zeros_like(error_RrCc[..., :1])
    for column in range(error_RrCc.shape[3]):
        total = total + error_RrCc[..., column : column + 1]
    while (rows := total.shape[1]) > 1:
        total = total[:, : rows // 2] + total[:, rows // 2 :]
    return total


def _searched(
    x_RrCc: Tensor, block_amax: Tensor, outer: Tensor, fmt: BlockFormat, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Per block the scale with the smallest sum of squared errors, among all of the scale type.

    The scale of the amax stands where none is better, and where it is no better than zeros. Of
    equal ones the smallest is taken.
    """
    scales = block_scales(block_amax, outer, fmt)
    values = _scaled(x_RrCc, scales, fmt, noise)
    decode, error = scales.decode, _error(values * scales.decode - x_RrCc, fmt.selection)
    noisy = _sum_block(x_RrCc.square()) <= error
    for candidate in _positive_scales(fmt):
        other = torch.full_like(decode, candidate)
        trial = _scaled(x_RrCc, Scales(other, other, divides=True), fmt, noise)
        trial_error = _error(trial * other - x_RrCc, fmt.selection)
        better = (trial_error < error) & ~noisy
        values = torch.where(better, trial, values)
        decode = torch.where(better, other, decode)
        error = torch.where(better, trial_error, error)
    return values, decode


def _positive_scales(fmt: BlockFormat) -> Iterator[float]:
    assert fmt.scale is not None
    return (fmt.scale.decode(code) for code in range(1, fmt.scale.max_code + 1))
