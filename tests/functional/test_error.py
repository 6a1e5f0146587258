"""The figures of `error`, computed a second time in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fp4lab
from fp4lab import formats as f
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat
from fp4lab.functional import compare

FORMATS = [f.NVFP4, f.NVFP4_16X16, f.MXFP4, f.get("mxfp4_floor"), f.FP8_TENSOR_E4M3, f.BF16]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_the_figures_are_those_of_their_definitions(fmt: BlockFormat) -> None:
    x = torch.randn(64, 128) * (torch.rand(64, 128) > 0.1)
    for axis in (-1, -2):
        e = fp4lab.error(x, fmt, axis=axis)
        q, a = fp4lab.fake_quantize(x, fmt, axis=axis).double().numpy(), x.double().numpy()
        noise, power = np.sum((q - a) ** 2), np.sum(a**2)
        assert e.relative_mse == pytest.approx(noise / power, rel=1e-12)
        assert e.sqnr_db == pytest.approx(10 * math.log10(power / noise), rel=1e-12)
        assert e.cosine == pytest.approx(np.sum(q * a) / math.sqrt(np.sum(q**2) * power), rel=1e-12)
        assert e.gain == pytest.approx(np.sum(q * a) / power, rel=1e-12)
        assert e.underflow == np.mean(q[a != 0] == 0)


def test_saturation_counts_what_lies_beyond_the_largest_number_of_its_block() -> None:
    """Scales by floor reach 6 2^k for an amax below 8 2^k: what exceeds 6 2^k is clipped."""
    x = torch.zeros(4, 32)
    x[0] = torch.linspace(0.1, 7.9, 32)
    x[1, :3] = torch.tensor([6.0, -6.5, 4.0])
    x[2, 0] = 5.0
    beyond = (x[0] > 6).sum().item() + 1
    assert fp4lab.error(x, f.get("mxfp4_floor")).saturation == beyond / x.numel()
    assert fp4lab.error(x.t(), f.get("mxfp4_floor"), axis=-2).saturation == beyond / x.numel()
    assert fp4lab.error(x, f.MXFP4).saturation == 0


def test_a_tensor_that_does_not_move_has_no_error() -> None:
    x = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0] * 4)
    e = fp4lab.error(x, f.MXFP4)
    assert e == (math.inf, 0.0, pytest.approx(1.0), 1.0, 0.0, 0.0)


@pytest.mark.parametrize("shape", [(0, 16), (16, 0), (4, 32)])
def test_zeros_and_empty_tensors_have_no_error(shape: tuple[int, int]) -> None:
    for fmt in FORMATS:
        e = fp4lab.error(torch.zeros(shape), fmt, ragged="pad")
        assert e == (math.inf, 0.0, 1.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize("shapes", [((2, 3), (3, 2)), ((3,), (0,)), ((0, 3), (3, 0))])
def test_tensors_of_different_shapes_are_not_compared(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    q, x = map(torch.zeros, shapes)
    with pytest.raises(InputError, match="should be alike"):
        compare(q, x)


def test_a_tensor_that_vanishes() -> None:
    x = torch.full((1, 16), 1e-9)
    e = fp4lab.error(x, f.NVFP4, amax=torch.tensor([1e9]))
    assert (e.sqnr_db, e.relative_mse, e.cosine, e.gain, e.underflow) == (0.0, 1.0, 0.0, 0.0, 1.0)


def test_something_from_nothing() -> None:
    e = compare(torch.ones(3), torch.zeros(3))
    assert (e.sqnr_db, e.relative_mse, e.cosine) == (-math.inf, math.inf, 0.0)
    assert compare(torch.zeros(3), torch.zeros(3)).sqnr_db == math.inf


def test_figures_of_low_precision_inputs_are_of_their_own_values() -> None:
    x = torch.randn(32, 64).bfloat16()
    assert fp4lab.error(x, f.NVFP4) == fp4lab.error(x.float(), f.NVFP4)


def test_numbers_whose_squares_leave_float64() -> None:
    e = fp4lab.error(torch.full((1, 16), 1e-170, dtype=torch.float64), f.NVFP4)
    assert (e.sqnr_db, e.relative_mse, e.underflow) == (0.0, 1.0, 1.0)
    for scale in (2.0**-600, 2.0**600):
        x = torch.randn(64, dtype=torch.float64)
        q = x + 0.01 * torch.randn(64, dtype=torch.float64)
        assert compare(q * scale, x * scale) == pytest.approx(compare(q, x), nan_ok=True, rel=1e-12)


def test_nan_is_not_hidden() -> None:
    e = compare(torch.tensor([float("nan"), 1.0]), torch.ones(2))
    assert all(math.isnan(figure) for figure in (e.sqnr_db, e.relative_mse, e.cosine, e.gain))
