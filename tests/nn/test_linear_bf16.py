"""Layers in bf16: operands in bf16, float32 sums, one rounding; both orientations of dY at once.

Two numbers may differ by half an ulp of bf16 (at most 2^-8 of the exact one, rounded once) and the
roundings of a float32 sum (2^-24 of the sum of magnitudes for each of its terms, of alpha and of
the final product).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fp4lab
from fp4lab import formats as f
from fp4lab import nn, recipes
from fp4lab.kernels import backends, ops
from fp4lab.nn import gemms
from fp4lab.nn.gemms import How
from fp4lab.recipes import Gemm, Operand, Source
from fp4lab.recipes.places import FPROP_W, FPROP_X, PLACES

M, N, K = 128, 256, 384
FPROP = (FPROP_X, FPROP_W)
NAMES = ["nvfp4", "nvfp4_base", "mxfp4", "mxfp8", "fp8_tensor", "fp8_block", "bf16"]
BF16 = torch.bfloat16


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    """X, W, dY."""
    return (
        torch.randn(M, K, dtype=BF16),
        torch.randn(N, K, dtype=BF16),
        torch.randn(M, N, dtype=BF16),
    )


def how() -> How:
    return How(fp4lab.noise_state(3, "layer", step=5), "error", "layer")


@pytest.mark.parametrize("name", NAMES)
def test_products_are_float32_sums_rounded_once(name: str) -> None:
    recipe = recipes.get(name).linear
    x, w, dy = tensors()
    stored = {"x": x, "w": w, "dy": dy}
    made = {
        "fprop": gemms.fprop(x, w, recipe, how(), BF16),
        "dgrad": gemms.dgrad(dy, w, recipe, how(), BF16),
        "wgrad": gemms.wgrad(dy, x, recipe, how(), BF16),
    }
    for gemm, result in made.items():
        sides = [place for place in PLACES if place.gemm == gemm]
        a, b = (gemms.operand_at(stored[p.tensor], p, recipe, how()) for p in sides)
        alpha = gemms.epilogue_alpha(a.epilogue, b.epilogue, a.format, b.format)
        factor = 1.0 if alpha is None else alpha.double()
        exact = a.values.double() @ b.values.double().t() * factor
        size = a.values.double().abs() @ b.values.double().abs().t() * factor
        assert result.dtype == BF16
        bound = exact.abs() * 2.0**-8 + size * (a.values.shape[1] + 4) * 2.0**-24
        assert ((result.double() - exact).abs() <= bound * (1 + 2.0**-8)).all(), gemm


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_both_gradients_at_once_are_each_alone(name: str, dtype: torch.dtype) -> None:
    recipe = recipes.get(name).linear
    x, w, dy = (t.to(dtype) for t in tensors())
    dx, dw = gemms.backward(dy, x, w, recipe, how())
    assert torch.equal(dx, gemms.dgrad(dy, w, recipe, how(), dtype))
    assert torch.equal(dw, gemms.wgrad(dy, x, recipe, how(), dtype))


@pytest.mark.parametrize("name", NAMES)
def test_a_float32_layer_has_the_bits_of_every_backend(name: str) -> None:
    """The operands are the same bits and their product is the same call."""
    linear = nn.Linear(K, N, recipe=recipes.get(name).linear)
    x, dy = torch.randn(M, K), torch.randn(M, N)
    results = []
    for backend in ("native", "torch", "reference"):
        with backends.backend(backend):
            leaf = x.clone().requires_grad_()
            linear.zero_grad()
            y = linear(leaf)
            y.backward(dy)
            assert leaf.grad is not None
            assert linear.weight.grad is not None
            results.append((y.detach(), leaf.grad, linear.weight.grad.clone()))
    for one, other in itertools.combinations(results, 2):
        assert all(map(torch.equal, one, other))


def test_operands_are_narrow_only_where_nothing_is_lost() -> None:
    narrow = BF16 if gemms.has_bf16(torch.device("cpu")) else torch.float32
    cpu = torch.device("cpu")
    for name, result, expected in (
        ("nvfp4", BF16, narrow),
        ("nvfp4", torch.float32, torch.float32),
        ("mxfp8", BF16, narrow),
        ("bf16", BF16, narrow),
        ("fp8_block", BF16, torch.float32),
    ):
        linear = recipes.get(name).linear
        assert gemms.operand_dtype(linear, FPROP, result, cpu) == expected, (name, result)
    rows = recipes.LinearRecipe.uniform(f.NVFP4_ROWWISE)
    assert gemms.operand_dtype(rows, FPROP, BF16, cpu) == torch.float32
    # W of dgrad is fprop's copy, with float32 scales, and dY is not quantized
    copied = recipes.get("fp8_block-quantization.dy").linear
    assert gemms.operand_dtype(copied, gemms.DGRAD, BF16, cpu) == torch.float32


def test_gradients_are_those_of_the_numbers_that_fprop_multiplied() -> None:
    linear = recipes.get("fp8_block-quantization.dy").linear
    layer = nn.Linear(128, 128, bias=False, recipe=linear, dtype=BF16)
    x = torch.randn(128, 128).to(BF16).requires_grad_()
    dy = (torch.eye(128) - torch.eye(128).roll(1, 1)).to(BF16)
    layer(x).backward(dy)
    w = fp4lab.fake_quantize(layer.weight.detach().float(), f.FP8_128X128_E4M3)
    # two terms, so that a float32 sum is rounded once
    assert x.grad is not None
    assert torch.equal(x.grad, (dy.float() @ w).to(BF16))


def test_a_layer_under_autocast_multiplies_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    if not gemms.has_bf16(torch.device("cpu")):
        pytest.skip("this CPU has no bf16 instructions")
    seen: list[torch.dtype] = []
    plain = ops.matmul

    def spy(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
        seen.extend((a.dtype, b.dtype))
        made: Tensor = plain(a, b, *rest)
        return made

    monkeypatch.setattr(gemms.ops, "matmul", spy)
    linear = nn.Linear(K, N, recipe=recipes.get("nvfp4").linear)
    x = torch.randn(M, K, requires_grad=True)
    with torch.autocast("cpu", dtype=BF16):
        y = linear(x)
    y.sum().backward()
    assert seen == [BF16] * 6
    assert y.dtype == BF16
    assert linear.weight.grad is not None
    assert linear.weight.grad.dtype == torch.float32


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
def test_a_bf16_layer_compiles_as_one_graph(autocast: bool) -> None:
    dtype = torch.float32 if autocast else BF16
    linear = nn.Linear(64, 64, recipe=recipes.get("nvfp4").linear, dtype=dtype)
    compiled = torch.compile(linear, fullgraph=True, backend="aot_eager")
    x = torch.randn(32, 64, dtype=dtype)
    with torch.autocast("cpu", dtype=BF16, enabled=autocast):
        assert torch.equal(compiled(x), linear(x))


def test_the_backward_keeps_its_numbers_where_only_fprop_switches() -> None:
    """An operand reused from an fprop that is not quantized is that of high precision."""
    b = Operand(format=f.NVFP4, hadamard=f.Hadamard(16))
    w = replace(b, source=Source.FORWARD)
    recipe = recipes.Recipe(name="a", linear=recipes.LinearRecipe(dgrad=Gemm(a=b, b=w)))
    recipe = recipe.switch(recipes.get("mxfp8"), at=1, part="forward")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, dtype=BF16))
    x, dy = torch.randn(64, 64).to(BF16).requires_grad_(), torch.randn(64, 64).to(BF16)
    found = []
    for step in (0, 1):
        nn.convert(model, recipe.at(step))
        found.append(torch.autograd.grad(model(x), x, dy)[0])
    assert torch.equal(*found)
