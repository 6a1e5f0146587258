"""Values, steps, scales and the theory of stochastic rounding, against definitions and draws."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

from fp4lab import formats, quantize
from fp4lab.formats import E2M1, E4M3, E5M2, INT4, BlockFormat, ElementType, Rounding
from fp4lab.functional import fake_quantize, noise_state
from fp4lab.plots.grid import decode_scales, finite_values, midpoints, steps, stochastic_theory

SIGNED = [E2M1, formats.E3M2, formats.E2M3, E4M3, E5M2, INT4]


def test_finite_values_of_e2m1() -> None:
    positive = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert finite_values(E2M1).tolist() == [*(-x for x in positive[::-1]), 0.0, *positive]


@pytest.mark.parametrize("element", SIGNED, ids=str)
def test_steps_are_the_distances_of_neighbours(element: ElementType) -> None:
    values = finite_values(element)
    between = midpoints(element)
    assert np.array_equal(steps(between, element), np.diff(values))
    assert steps(np.array([2 * element.max_value]), element) == values[-1] - values[-2]


@pytest.mark.parametrize("bits", [1, 8])
@pytest.mark.parametrize("element", [E2M1, E5M2], ids=str)
def test_theory_is_that_of_all_random_numbers(element: ElementType, bits: int) -> None:
    """Every number of `bits` bits once, in exact arithmetic: up where it makes the sum a step."""
    positive = [Fraction(x) for x in finite_values(element) if x >= 0]
    rng = np.random.default_rng(0)
    for low, high in list(itertools.pairwise(positive))[-12:]:
        x = low + (high - low) * Fraction(int(rng.integers(1 << 12)), 1 << 12)
        up = sum(
            (x - low) / (high - low) * 2**bits // 1 + noise >= 2**bits for noise in range(2**bits)
        )
        p = Fraction(up, 2**bits)
        mean, deviation = stochastic_theory(np.array([float(x), -float(x)]), element, bits)
        expected = float(low + p * (high - low))
        assert mean.tolist() == [expected, -expected]
        spread = float((high - low) ** 2 * p * (1 - p)) ** 0.5
        np.testing.assert_allclose(deviation, spread, rtol=1e-15)


def test_theory_saturates() -> None:
    mean, deviation = stochastic_theory(np.array([-9.0, 6.0, 9.0]), E2M1, 8)
    assert mean.tolist() == [-6.0, 6.0, 6.0]
    assert deviation.tolist() == [0.0, 0.0, 0.0]


def test_theory_is_what_the_rounding_does() -> None:
    x, draws = np.linspace(-7, 7, 57), 4096
    rows = torch.from_numpy(x).float().expand(draws, -1)
    plain = BlockFormat(name="e2m1", element=E2M1)
    how = {"rounding": Rounding.STOCHASTIC_8, "noise": noise_state(1)}
    found = fake_quantize(rows, plain, **how).double().numpy().mean(axis=0)
    mean, deviation = stochastic_theory(x, E2M1, 8)
    # 57 means, each within 5 of its deviations but with a probability of 6e-7
    assert (np.abs(found - mean) <= 5 * deviation / draws**0.5).all()


@pytest.mark.parametrize(
    "name", ["nvfp4", "nvfp4_16x16", "mxfp4", "mxfp8_e5m2", "mxfp6_e2m3", "fp8_1x128_e4m3", "bf16"]
)
def test_values_are_codes_times_decode_scales(name: str) -> None:
    fmt = formats.get(name)
    x = torch.randn(32, 128, generator=torch.Generator().manual_seed(0)) * 3
    q = quantize(x, fmt)
    units = q.dequantize().double() / decode_scales(q)
    if fmt.block is None:
        assert torch.equal(units, q.dequantize().double())
        return
    # code x scale and 1 x scale are each rounded to float32 once or twice
    values = torch.from_numpy(finite_values(fmt.element))
    nearest = values[(units.unsqueeze(-1) - values).abs().argmin(-1)]
    torch.testing.assert_close(units, nearest, rtol=2**-22, atol=0)
    assert units.abs().max() >= fmt.element.max_value / 2
