"""Stochastic rounding of whole tensors: the five properties, in every format (edge case B44)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fp4lab
from fp4lab import formats as f
from fp4lab.formats import BlockFormat, Rounding, Selection
from fp4lab.kernels.quantize.reference import dequantized, quantize_blocks

FORMATS = [f.get(name) for name in f.names()]
MODES = [Rounding.STOCHASTIC_8, Rounding.STOCHASTIC_32]
ANY_FORMAT, ANY_MODE = st.sampled_from(FORMATS), st.sampled_from(MODES)
SEEDS = st.integers(0, 1 << 20)
SHAPE = (16, 64)


def data(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SHAPE, generator=generator) * 2.0 ** (seed % 9 - 4)


def rounded(x: Tensor, fmt: BlockFormat, mode: Rounding, step: int = 0, **how: Any) -> Tensor:
    state = fp4lab.noise_state(0, "layer", step=step)
    return fp4lab.fake_quantize(x, fmt, rounding=mode, noise=state, ragged="pad", **how)


def neighbours(x: Tensor, fmt: BlockFormat, mode: Rounding) -> tuple[Tensor, Tensor]:
    """What the smallest and the largest random integer make of x."""
    kind = torch.uint8 if mode == Rounding.STOCHASTIC_8 else torch.int64
    ends = (0, (1 << mode.noise_bits) - 1)
    low, high = (
        dequantized(
            quantize_blocks(x, fmt, noise_MK=torch.full(x.shape, end, dtype=kind)), fmt, SHAPE
        )
        for end in ends
    )
    return low, high


POWER_OF_TWO = [
    fmt for fmt in FORMATS if fmt.block is None or fmt.scale == f.E8M0 or fmt.name.endswith("_pow2")
]


@settings(max_examples=60)
@given(st.sampled_from(POWER_OF_TWO), ANY_MODE, SEEDS)
def test_numbers_of_the_grid_are_unchanged(fmt: BlockFormat, mode: Rounding, seed: int) -> None:
    """Where nearest leaves x, so does any noise: the scales do not depend on the rounding.

    Other scales have no exact reciprocal: x times it may fall a float32 ulp short of the grid, and
    8 bits then round down once in 256 times, as the arithmetic of Transformer Engine does.
    """
    x = data(seed)
    # small integers times a power of two meet many grids
    x = (x / x.abs().max() * 7).round() * 2.0 ** (seed % 9 - 4)
    exact = fp4lab.fake_quantize(x, fmt, ragged="pad") == x
    assert exact.any()
    assert torch.equal(rounded(x, fmt, mode)[exact], x[exact])


@settings(max_examples=60)
@given(ANY_FORMAT, ANY_MODE)
def test_zeros_are_unchanged(fmt: BlockFormat, mode: Rounding) -> None:
    x = data(0) * (data(1) > 0)
    assert not rounded(x, fmt, mode)[x == 0].any()
    zeros = rounded(torch.zeros(SHAPE), fmt, mode)
    # a decode scale of 0 divides, in the tools that store one
    assert zeros.isnan().all() if fmt.direction == f.Direction.DECODE else not zeros.any()


@settings(max_examples=60)
@given(ANY_FORMAT, ANY_MODE, SEEDS)
def test_only_the_two_neighbours_occur(fmt: BlockFormat, mode: Rounding, seed: int) -> None:
    x = data(seed)
    if fmt.selection != Selection.NONE:
        fmt = fmt.replace(selection=Selection.NONE)
    low, high = neighbours(x, fmt, mode)
    result = rounded(x, fmt, mode)
    assert ((result == low) | (result == high)).all()
    assert (low.abs() <= high.abs()).all()
    if seed % 4 == 0 and fmt.element.bits <= 8:
        assert (result == low).any()
        assert (result == high).any()


@settings(max_examples=60)
@given(ANY_FORMAT, ANY_MODE, SEEDS)
def test_the_same_state_rounds_the_same_and_another_does_not(
    fmt: BlockFormat, mode: Rounding, seed: int
) -> None:
    x = data(seed)
    once, again, later = rounded(x, fmt, mode), rounded(x, fmt, mode), rounded(x, fmt, mode, step=1)
    assert torch.equal(once, again)
    assert not torch.equal(once, later)
    assert not torch.equal(once, rounded(x, fmt, mode, stream=1))


@settings(max_examples=60)
@given(ANY_FORMAT, ANY_MODE, SEEDS)
def test_nan_and_infinity_are_as_in_nearest(fmt: BlockFormat, mode: Rounding, seed: int) -> None:
    x = data(seed)
    x.view(-1)[seed % x.numel()] = [torch.nan, torch.inf, -torch.inf][seed % 3]
    nearest, result = fp4lab.fake_quantize(x, fmt, ragged="pad"), rounded(x, fmt, mode)
    # 0 and other codes times an infinite scale are NaN and infinite
    assert torch.equal(result.isfinite(), nearest.isfinite())
    assert seed % 3 or nearest.isnan().any()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_the_upper_neighbour_comes_with_the_probability_of_the_fraction(
    fmt: BlockFormat, mode: Rounding
) -> None:
    """Over 8 steps: the number of values rounded up, within 5 deviations of a sum of Bernoullis."""
    if fmt.selection != Selection.NONE:
        fmt = fmt.replace(selection=Selection.NONE)
    x = data(20)
    low, high = neighbours(x, fmt, mode)
    between = low != high
    fraction = ((x - low) / (high - low))[between].double().clamp(0, 1)
    ups = torch.stack([rounded(x, fmt, mode, step=s)[between] == high[between] for s in range(8)])
    # 8 bits round the fraction down by at most 1/256; scales cost a few units of float32
    slack = (1 / 256 if mode == Rounding.STOCHASTIC_8 else 0) + 2.0**-9 * (fmt.block is None)
    surplus = ups.double().sum(dim=0) - 8 * fraction
    deviation = math.sqrt(8 * (fraction * (1 - fraction)).sum().item())
    assert between.sum() > 900 or fmt.element.bits > 8
    assert -5 * deviation - 8 * slack * len(fraction) <= surplus.sum().item() <= 5 * deviation


def test_every_shard_rounds_as_the_whole() -> None:
    """Edge cases B40 and B77: with the global amax and places, codes depend on no sharding."""
    x = torch.randn(48, 128)
    for mode in (Rounding.NEAREST, *MODES):
        how: dict[str, Any] = {"rounding": mode, "noise": fp4lab.noise_state(3, "w", step=5)}
        others = (f.NVFP4_MODELOPT, f.NVFP4_COMPRESSED_TENSORS, f.NVFP4_FOUROVERSIX)
        for fmt in (f.NVFP4, f.NVFP4_16X16, f.MXFP4, f.FP8_1X128_E4M3, *others):
            whole = fp4lab.quantize(x, fmt, **how)
            amax = None if fmt.level == f.Level.NONE else x.abs().amax().view(1)
            for part in range(3):
                rows = slice(16 * part, 16 * part + 16)
                shard = fp4lab.quantize(
                    x[rows], fmt, amax=amax, row_ids=torch.arange(48)[rows], **how
                )
                assert torch.equal(shard.codes, whole.codes[rows])
            if fmt.block is not None and fmt.block[1] <= 64:
                halves = [
                    fp4lab.quantize(x[:, c : c + 64], fmt, amax=amax, column_offset=c, **how)
                    for c in (0, 64)
                ]
                assert torch.equal(torch.cat([h.codes for h in halves], dim=1), whole.codes)


def test_replicas_agree_and_steps_and_tensors_differ() -> None:
    """Edge case B40: noise is a function of seed, step, tensor and element, and of nothing else."""
    x = torch.randn(32, 64)

    def codes(seed: int, layer: str, step: int) -> Tensor:
        state = fp4lab.noise_state(seed, layer, step=step)
        torch.manual_seed(torch.randint(1 << 30, (1,)).item())  # other global states
        return fp4lab.quantize(x, f.NVFP4, rounding=Rounding.STOCHASTIC_8, noise=state).codes

    base = codes(0, "up", 3)
    assert torch.equal(base, codes(0, "up", 3))
    for other in (codes(1, "up", 3), codes(0, "down", 3), codes(0, "up", 4)):
        assert not torch.equal(base, other)


def test_layers_with_equal_gradients_round_independently() -> None:
    """Edge case B41: errors of two layers, and of two operands of one, are uncorrelated."""
    x = torch.randn(128, 256)

    def error(layer: str, stream: int) -> Tensor:
        state = fp4lab.noise_state(0, layer)
        how: dict[str, Any] = {"rounding": Rounding.STOCHASTIC_8, "noise": state, "stream": stream}
        return (fp4lab.fake_quantize(x, f.NVFP4, **how) - mean).flatten()

    mean = torch.stack(
        [
            fp4lab.fake_quantize(
                x, f.NVFP4, rounding=Rounding.STOCHASTIC_8, noise=fp4lab.noise_state(9, str(i))
            )
            for i in range(64)
        ]
    ).mean(dim=0)
    errors = [error("blocks.0.up", 2), error("blocks.1.up", 2), error("blocks.0.up", 4)]
    correlations = torch.corrcoef(torch.stack(errors))
    # the shared estimate of the mean adds 1/65 of a variance to each covariance
    bound = 5 / math.sqrt(x.numel()) + 1 / 65
    assert correlations.triu(1).abs().max() < bound
    assert torch.equal(errors[0], error("blocks.0.up", 2))


def test_nonzero_gradients_do_not_vanish() -> None:
    """Edge case B43: whatever the instruction set, stochastic rounding is computed in software."""
    x = torch.randn(64, 64) * 1e-6
    for mode in MODES:
        result = rounded(x, f.NVFP4, mode)
        assert 0.9 < (result.norm() / x.norm()).item() < 1.1
