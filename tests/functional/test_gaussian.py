"""Errors of Gaussian and heavy-tailed tensors: constants that need no training.

The constants are those of arXiv 2601.22813 (Quartet II, Table 1) and of a recomputation of it on
2048 x 2048 normal numbers, given to the last digit shown. The tolerance is derived: half a unit of
that digit, and 5 standard errors of both samples. The standard error comes from 32 groups of rows,
which are independent: a ratio of sums r = sum e / sum p over n groups has the variance
n / (n - 1) sum (e - r p)^2 / (sum p)^2.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import fp4lab
from fp4lab import formats as f
from fp4lab.formats import BlockFormat, Rounding, Selection
from fp4lab.kernels.hadamard.reference import hadamard

ROWS, COLUMNS, GROUPS = 1024, 1024, 32
PUBLISHED_SIZE = 2048 * 2048
MSE = Selection.MSE
FLOOR = f.get("mxfp4_floor")
HEADROOM = f.NVFP4.replace(amax_target=6 * 16 / 17)
CLIPPED = f.NVFP4.replace(amax_target=6 * 16 / 17 / 0.93)
SR = {"rounding": Rounding.STOCHASTIC_32, "noise": fp4lab.noise_state(0)}


@cache
def gaussian() -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(20250930))


@cache
def heavy_tailed() -> Tensor:
    """N(0, 1) + Bernoulli(0.005) N(0, 100^2)."""
    generator = torch.Generator().manual_seed(20260110)
    hit = torch.rand(ROWS, COLUMNS, generator=generator) < 0.005
    return gaussian() + hit * torch.randn(ROWS, COLUMNS, generator=generator) * 100


class Ratio(NamedTuple):
    """A ratio of sums, and the standard error with which this sample gives it."""

    value: float
    error: float


def ratio(above: Tensor, below: Tensor) -> Ratio:
    e, p = (t.double().reshape(GROUPS, -1).sum(dim=1) for t in (above, below))
    r = (e.sum() / p.sum()).item()
    variance = ((e - r * p).square().sum() / p.sum() ** 2 * GROUPS / (GROUPS - 1)).item()
    return Ratio(r, math.sqrt(variance))


def figures(x: Tensor, fmt: BlockFormat, how: dict[str, Any]) -> dict[str, Ratio]:
    q = fp4lab.fake_quantize(x, fmt, **how)
    return {
        "relative_mse": ratio((q - x).double().square(), x.double().square()),
        "shrinkage": ratio((x - q).double() * x, x.double().square()),
        "underflow": ratio((q == 0) & (x != 0), x != 0),
    }


def assert_near(measured: Ratio, published: str, scale: float, name: str) -> None:
    digits = len(published.partition(".")[2])
    both_samples = math.sqrt(1 + ROWS * COLUMNS / PUBLISHED_SIZE)
    tolerance = 0.5 * 10.0**-digits * scale + 5 * measured.error * both_samples
    assert abs(measured.value - float(published) * scale) <= tolerance, (name, measured)


#: format, rounding, 1000 x relative MSE, 1 - <q, x> / <x, x>, underflow in percent
CONSTANTS = {
    "nvfp4": (f.NVFP4, {}, "9.04", "0.0045", "6.8"),
    "nvfp4, 4-over-6 by MSE": (f.NVFP4_4OVER6.replace(selection=MSE), {}, "7.56", "0.0034", ""),
    "nvfp4, 4-over-6 by MSE, cap 448": (
        f.NVFP4_4OVER6.replace(selection=MSE, scale_cap=448.0),
        {},
        "7.57",
        "",
        "",
    ),
    "nvfp4, 4-over-6 by MAE": (f.NVFP4_4OVER6, {}, "7.80", "0.0032", ""),
    "nvfp4 16x16": (f.NVFP4_16X16, {}, "12.41", "0.0092", "10.1"),
    "nvfp4 16x16, 4-over-6 by MSE": (
        f.NVFP4_4OVER6_16X16.replace(selection=MSE),
        {},
        "12.40",
        "",
        "",
    ),
    "nvfp4, stochastic": (f.NVFP4, SR, "18.86", "0.0033", ""),
    "nvfp4, stochastic, 16/17 headroom": (HEADROOM, SR, "23.52", "0.0000", ""),
    "nvfp4, mapped to 6 * 16/17 / 0.93": (CLIPPED, {}, "8.98", "0.0079", ""),
    "nvint4": (f.NVFP4.replace(element=f.INT4), {}, "7.45", "", ""),
    "mxfp4, floor": (FLOOR, {}, "13.23", "0.0195", "8.8"),
    "mxfp4, rounded up": (f.MXFP4, {}, "13.35", "0.0099", "10.7"),
    "mxfp4 32x32": (f.MXFP4.replace(block=(32, 32)), {}, "22.55", "", ""),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_of_the_normal_distribution(name: str) -> None:
    fmt, how, relative_mse, shrinkage, underflow = CONSTANTS[name]
    measured = figures(gaussian(), fmt, how)
    assert_near(measured["relative_mse"], relative_mse, 1e-3, "relative MSE")
    for figure, published, scale in (("shrinkage", shrinkage, 1), ("underflow", underflow, 1e-2)):
        if published:
            assert_near(measured[figure], published, scale, figure)
    # `error` reports the same
    reported = fp4lab.error(gaussian(), fmt, **how)
    assert reported.relative_mse == pytest.approx(measured["relative_mse"].value, rel=1e-12)
    assert reported.gain == pytest.approx(1 - measured["shrinkage"].value, rel=1e-12)
    assert reported.underflow == pytest.approx(measured["underflow"].value, rel=1e-12)
    assert reported.sqnr_db == pytest.approx(-10 * math.log10(reported.relative_mse))


def test_what_stochastic_nvfp4_clips() -> None:
    """3.5 % of the values lie beyond the largest number of their block: its scale rounded down."""
    x = gaussian()
    limit = fp4lab.quantize(x, f.NVFP4)
    largest = 6 * (limit.scales.view(torch.float8_e4m3fn).float() * limit.amax / (6 * 448))
    beyond = x.abs() > largest.repeat_interleave(16, dim=1) * (1 + 2.0**-21)
    assert_near(ratio(beyond, torch.ones_like(x)), "3.5", 1e-2, "clipped")
    assert fp4lab.error(x, f.NVFP4, **SR).saturation == beyond.double().mean().item()


def test_a_second_level_for_every_128_values() -> None:
    """The outer 1x128 scales of arXiv 2510.27527."""
    measured = figures(gaussian().view(-1, 128), f.NVFP4_ROWWISE, {})
    assert_near(measured["relative_mse"], "9.01", 1e-3, "outer 1x128")


@pytest.mark.parametrize(
    ("group", "relative_mse", "shrinkage"), [(16, "9.32", "0.0001"), (128, "9.74", "0.0005")]
)
def test_ms_eden(group: int, relative_mse: str, shrinkage: str) -> None:
    """Clipped to nearest, then block scales corrected by <x, x> / <x, q> and rounded at random.

    arXiv 2601.22813, without its rotation, which does not change normal numbers. Made of the
    public face: formats and casts.
    """
    x = gaussian()
    fmt = CLIPPED.replace(scale_cap=256.0)
    rounded = fp4lab.quantize(x, fmt)
    q = rounded.dequantize()
    inner = (x * q).view(-1, group).sum(dim=1, keepdim=True)
    correction = x.view(-1, group).square().sum(dim=1, keepdim=True) / inner
    scales = rounded.scales.view(torch.float8_e4m3fn).float()
    e4m3 = BlockFormat(name="e4m3 alone", element=f.E4M3)
    blocks = correction.expand(-1, group // 16).reshape(scales.shape)
    corrected = fp4lab.fake_quantize(blocks * scales, e4m3, **SR)
    result = q * (corrected / scales).repeat_interleave(16, dim=1)
    power = x.double().square()
    assert_near(ratio((result - x).double().square(), power), relative_mse, 1e-3, "relative MSE")
    assert_near(ratio((x - result).double() * x, power), shrinkage, 1, "shrinkage")


def test_scales_that_clip_nothing_make_stochastic_rounding_unbiased() -> None:
    """ "3/4-floor" of MXFP4: the scale rounded up for 3/4 x, which leaves values up to 6."""
    measured = figures(gaussian() * 0.75, f.MXFP4, SR)
    assert abs(measured["shrinkage"].value) <= 5 * measured["shrinkage"].error
    assert_near(measured["relative_mse"], "28.2", 1e-3, "stochastic")
    nearest = figures(gaussian() * 0.75, f.MXFP4, {})
    assert_near(nearest["relative_mse"], "13.87", 1e-3, "nearest")
    assert_near(nearest["shrinkage"], "0.0089", 1, "nearest")
    clipped = figures(gaussian(), f.NVFP4, SR)["shrinkage"]
    assert clipped.value > 10 * clipped.error


#: size of the transform, 1000 x relative MSE
HEAVY = {"1": "2.1", "2": "2.1", "4": "2.3", "16": "5.0", "32": "7.2", "128": "10.8"}


@pytest.mark.parametrize("size", HEAVY)
def test_a_hadamard_transform_hurts_nvfp4_on_sparse_outliers(size: str) -> None:
    x = transformed(int(size))
    assert_near(figures(x, f.NVFP4, {})["relative_mse"], HEAVY[size], 1e-3, size)


def transformed(size: int) -> Tensor:
    return hadamard(heavy_tailed(), f.Hadamard(size, 1))


def test_a_hadamard_transform_helps_mxfp4_on_sparse_outliers() -> None:
    before = figures(heavy_tailed(), f.MXFP4, {})["relative_mse"]
    after = figures(transformed(32), f.MXFP4, {})["relative_mse"]
    assert_near(before, "13.2", 1e-3, "before")
    assert_near(after, "11.0", 1e-3, "after")
    assert after.value < before.value - 5 * math.hypot(before.error, after.error)


def test_transformed_outliers_grow() -> None:
    """Values pile up at 0.9 of the largest and round up to it: 4 percent too long."""
    measured = figures(transformed(16), f.NVFP4, {})["shrinkage"]
    assert_near(measured, "-0.04", 1, "shrinkage")
