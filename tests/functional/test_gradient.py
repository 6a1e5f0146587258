"""The straight-through gradient of fake_quantize."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import fp4lab
from fp4lab import formats as f
from fp4lab.formats import BlockFormat

FORMATS = [f.get(name) for name in f.names()]
FLOOR = f.get("mxfp4_floor")


def gradient(x: Tensor, fmt: BlockFormat, dy: Tensor, **how: Any) -> Tensor:
    x = x.clone().requires_grad_()
    fp4lab.fake_quantize(x, fmt, **how).backward(dy)
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_identity_passes_everything(fmt: BlockFormat) -> None:
    """Edge case B48: also saturated elements, whatever torch's clamp does at its bound."""
    x, dy = torch.randn(32, 128), torch.randn(32, 128)
    x[0, :2] = torch.tensor([1e3, -1e3])
    for axis in (-1, -2):
        assert torch.equal(gradient(x, fmt, dy, axis=axis, ragged="pad"), dy)


@pytest.mark.parametrize(
    ("policy", "passed"), [("identity", [1.0, 1.0, 1.0, 1.0]), ("masked", [0.0, 1.0, 0.0, 1.0])]
)
def test_the_policy_for_clipped_values_is_named(
    policy: Literal["identity", "masked"], passed: list[float]
) -> None:
    """Edge case B49: x = 7 where the largest number is 6; identity is the default."""
    x = torch.tensor([[7.0, 6.0, -6.5, -6.0] * 8])
    expected = torch.tensor([passed * 8])
    assert torch.equal(gradient(x, FLOOR, torch.ones_like(x), gradient=policy), expected)
    turned = gradient(x.t(), FLOOR, torch.ones_like(x.t()), gradient=policy, axis=-2)
    assert torch.equal(turned, expected.t())
    if policy == "identity":
        assert torch.equal(gradient(x, FLOOR, torch.ones_like(x)), expected)


@pytest.mark.parametrize("fmt", [f.NVFP4, f.NVFP4_16X16, f.MXFP4, f.FP8_TENSOR_E4M3, f.BF16])
def test_scales_that_reach_the_largest_value_mask_only_rounded_down_scales(
    fmt: BlockFormat,
) -> None:
    """The mask is |x| > M times the block's decode scale, up to float32 rounding."""
    x = torch.randn(64, 128)
    passed = gradient(x, fmt, torch.ones_like(x), gradient="masked")
    assert set(passed.unique().tolist()) <= {0.0, 1.0}
    beyond = 1 - passed.mean().item()
    reported = fp4lab.error(x, fmt).saturation
    assert beyond == pytest.approx(reported, abs=1e-6)
    assert (beyond > 0) == (fmt in (f.NVFP4, f.NVFP4_16X16))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_no_gradient_flows_through_scales(fmt: BlockFormat) -> None:
    """Edge case B50: abs().max() would split it over the tie 3, -3, 3."""
    x = torch.zeros(1, 128)
    x[0, :3] = torch.tensor([3.0, -3.0, 3.0])
    dy = torch.randn(1, 128)
    assert torch.equal(gradient(x, fmt, dy, ragged="pad"), dy)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gradients_have_the_dtype_of_x(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 32).to(dtype)
    for policy in ("identity", "masked"):
        passed = gradient(x, f.MXFP4, torch.ones_like(x), gradient=policy)
        assert passed.dtype == dtype
        assert passed.shape == x.shape


def test_no_gradient_flows_through_a_given_amax() -> None:
    amax = torch.ones(1, requires_grad=True)
    q = fp4lab.quantize(torch.randn(4, 32), f.NVFP4, amax=amax)
    assert not q.amax.requires_grad
    assert not q.dequantize().requires_grad
    assert not fp4lab.fake_quantize(torch.randn(4, 32), f.NVFP4, amax=amax).requires_grad


def test_gradients_stay_finite_on_zeros() -> None:
    """Edge case B02."""
    for fmt in FORMATS:
        passed = gradient(torch.zeros(16, 16), fmt, torch.ones(16, 16), ragged="pad")
        assert torch.equal(passed, torch.ones(16, 16))


def test_fake_quantization_can_be_differentiated_twice() -> None:
    x = torch.randn(1, 32, requires_grad=True)
    y = fp4lab.fake_quantize(x, f.MXFP4).square().sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    assert torch.equal(first, 2 * fp4lab.fake_quantize(x, f.MXFP4))
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, torch.full_like(x, 2.0))
