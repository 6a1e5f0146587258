"""torch.compile: the same bits as eager, one graph, and no recompilation from step to step."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fp4lab
from fp4lab import formats as f
from fp4lab import recipes
from fp4lab.formats import Rounding
from fp4lab.recipes import Gemm, LinearRecipe, Operand
from tests.nn.test_linear_state import STOCHASTIC, mlp, set_step

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor keys its cache of compiled graphs by the names of operators, not by what they do.

    A graph that was compiled before an operator's strides changed would be used again.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("name", ["stochastic", "nvfp4", "fp8_tensor"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_model_trains_to_the_same_bits_in_one_graph(name: str, backend: str) -> None:
    """Edge cases B42 and B47: noise comes from a buffer, so a new step is no new graph."""
    recipe = STOCHASTIC if name == "stochastic" else recipes.get(name).linear
    models = [mlp(recipe) for _ in range(2)]
    counter = CompileCounter(backend)
    compiled = torch.compile(models[1], fullgraph=True, backend=counter)
    results: list[list[Tensor]] = [[], []]
    for step in range(4):
        x = torch.randn(32, 32, generator=torch.Generator().manual_seed(step))
        for model, call, result in zip(models, (models[0], compiled), results, strict=True):
            set_step(model, step, step % 2)
            model.zero_grad()
            y = call(x)
            y.square().sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=1e-3)
            result.extend([y.detach(), *(p.detach().clone() for p in model.parameters())])
    for eager, other in zip(*results, strict=True):
        # GELU and the loss are fused by inductor; everything of ours is opaque to it
        if backend == "aot_eager":
            assert torch.equal(eager, other)
        else:
            assert torch.allclose(eager, other, rtol=1e-4, atol=1e-4)
    assert counter.graphs == 1


def test_layers_of_one_recipe_compile_for_any_number_of_tokens() -> None:
    model = mlp(recipes.get("nvfp4").linear)
    counter = CompileCounter("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for tokens in (48, 64, 80):
        x = torch.randn(tokens, 32)
        y = compiled(x)
        assert torch.equal(y, model(x))
        y.sum().backward()
    assert counter.graphs == 1


class CompileCounter:
    """A backend that counts the graphs it is given."""

    def __init__(self, backend: str) -> None:
        self.graphs = 0
        self.compile = torch._dynamo.lookup_backend(backend)

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return self.compile(graph, inputs)


@pytest.mark.parametrize("rounding", Rounding)
def test_fake_quantization_survives_inductor_bit_for_bit(rounding: Rounding) -> None:
    """Edge cases B27 and B47: no pass removes the rounding or draws other noise."""
    state = fp4lab.noise_state(0)
    formats = [f.NVFP4, f.NVFP4_16X16, f.NVFP4_4OVER6, f.MXFP4, f.FP8_1X128_E4M3, f.BF16]

    def function(x: Tensor, noise: Tensor) -> list[Tensor]:
        how: dict[str, Any] = {"rounding": rounding, "noise": noise, "ragged": "pad"}
        return [fp4lab.fake_quantize(x, fmt, **how) for fmt in formats]

    compiled = torch.compile(function, fullgraph=True)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(48, 160).to(dtype)
        for a, b in zip(function(x, state), compiled(x, state), strict=True):
            assert torch.equal(a, b)


def test_odd_strides_of_compiled_products_are_read_as_they_are() -> None:
    """Edge case B34: the operator sees the strides at run time, whatever the compiler padded."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        return fp4lab.fake_quantize((a @ b).t() * 2, f.NVFP4, ragged="pad")

    compiled = torch.compile(function, fullgraph=True)
    # small integers: the product is exact in any order
    a = torch.randint(-4, 5, (67, 33)).float()
    b = torch.randint(-4, 5, (33, 1021)).float()
    assert torch.equal(function(a, b), compiled(a, b))


def test_bf16_round_trips_keep_their_rounding_under_inductor() -> None:
    """Edge case B27: a cast down and up again inside a fused region."""

    def function(x: Tensor, a: Tensor) -> Tensor:
        y = fp4lab.fake_quantize(x * a, f.BF16)
        return fp4lab.fake_quantize(y * a, f.BF16)

    x, a = torch.randn(64, 64), torch.randn(64, 64)
    assert torch.equal(function(x, a), torch.compile(function, fullgraph=True)(x, a))


class Residual(torch.nn.Module):
    def __init__(self, recipe: LinearRecipe) -> None:
        super().__init__()
        self.inner = mlp(recipe)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def test_a_compiled_module_copies_and_keeps_its_keys() -> None:
    """Edge case B59: and B90's remedy, module.compile(), which wraps nothing."""
    model = Residual(STOCHASTIC)
    keys = list(model.state_dict())
    model.compile(fullgraph=True, backend="aot_eager")
    x = torch.randn(32, 32)
    y = model(x)
    assert list(model.state_dict()) == keys
    assert torch.equal(copy.deepcopy(model)(x), y)


def test_a_transform_of_unquantized_operands_compiles() -> None:
    transformed = Operand(hadamard=f.Hadamard(16, 3))
    gemm = Gemm(a=transformed, b=Operand(format=f.MXFP4, hadamard=f.Hadamard(16, 3)))
    model = Residual(LinearRecipe(fprop=gemm, wgrad=Gemm(a=transformed, b=transformed)))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(32, 32)
    assert torch.equal(compiled(x), model(x))
    compiled(x).sum().backward()


def test_gradients_of_fake_quantization_under_compile() -> None:
    def loss(x: Tensor) -> Tensor:
        return fp4lab.fake_quantize(x, f.MXFP4, gradient="masked").square().sum()

    x = torch.randn(32, 64, requires_grad=True)
    (eager,) = torch.autograd.grad(loss(x), x)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    (other,) = torch.autograd.grad(compiled(x), x)
    assert torch.equal(eager, other)


def test_a_compiled_step_may_set_its_step_and_disable_its_recipe() -> None:
    """Everything of a step in one graph, one for each recipe, for any number of steps."""
    models = [mlp() for _ in range(2)]
    counter = CompileCounter("aot_eager")

    def losses(model: torch.nn.Module, x: Tensor, step: int) -> tuple[Tensor, Tensor]:
        fp4lab.set_step(model, step)
        with fp4lab.disabled(model):
            plain = model(x).square().mean()
        return plain, model(x).square().mean()

    compiled = torch.compile(losses, fullgraph=True, backend=counter)
    found: list[list[Tensor]] = [[], []]
    for step in range(12):
        if step == 8:
            for model in models:
                fp4lab.set_recipe(model, "nvfp4")
        x = torch.randn(32, 32, generator=torch.Generator().manual_seed(step))
        for model, call, values in zip(models, (losses, compiled), found, strict=True):
            model.zero_grad()
            plain, quantized = call(model, x, step)
            (plain + quantized).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=1e-2)
            values += [plain.detach(), quantized.detach()]
            values += [parameter.detach().clone() for parameter in model.parameters()]
    for eager, other in zip(*found, strict=True):
        assert torch.equal(eager, other)
    # the first step is compiled as a constant, then for any; each recipe anew
    assert counter.graphs <= 4
