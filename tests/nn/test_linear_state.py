"""What a linear layer keeps between calls: nothing but its parameters and the noise it is given."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import fp4lab
from fp4lab import formats as f
from fp4lab import nn, recipes
from fp4lab.errors import InputError
from fp4lab.formats import Rounding
from fp4lab.nn import convert
from fp4lab.recipes import Gemm, LinearRecipe, Operand

NVFP4 = recipes.get("nvfp4").linear
#: stochastic in the forward too, so that a recompute with other noise shows
STOCHASTIC = LinearRecipe(
    fprop=Gemm(
        a=Operand(format=f.NVFP4, rounding=Rounding.STOCHASTIC_8), b=Operand(format=f.MXFP4)
    ),
    dgrad=Gemm(a=Operand(format=f.NVFP4, rounding=Rounding.STOCHASTIC_32)),
    wgrad=Gemm(a=Operand(format=f.NVFP4, rounding=Rounding.STOCHASTIC_8)),
)


def mlp(recipe: LinearRecipe | None = STOCHASTIC, seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        nn.Linear(32, 64, recipe=recipe, layer_name="0", seed=seed),
        torch.nn.GELU(),
        nn.Linear(64, 32, recipe=recipe, layer_name="2", seed=seed),
    )


def set_step(model: torch.nn.Module, step: int, microbatch: int = 0) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.set_step(step, microbatch)


def gradients(model: torch.nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) > 0 and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recompute_rounds_as_the_forward_did(reentrant: bool) -> None:
    """Edge case B45: both kinds of activation checkpointing, bit for bit."""
    model, x = mlp(), torch.randn(32, 32, requires_grad=True)
    set_step(model, 3)
    y = model(x)
    y.square().sum().backward()
    expected, x_grad = gradients(model), x.grad
    model.zero_grad()
    x.grad = None
    again = checkpoint(model, x, use_reentrant=reentrant)
    assert torch.equal(again, y)
    # other draws of the global generator must not matter
    torch.rand(7)
    again.square().sum().backward()
    assert equal(gradients(model), expected)
    assert x_grad is not None
    assert x.grad is not None
    assert torch.equal(x.grad, x_grad)
    set_step(model, 4)
    assert not torch.equal(model(x), y)


@pytest.mark.parametrize("preserve", [True, False])
def test_training_is_the_same_with_and_without_checkpointing(preserve: bool) -> None:
    """Edge case B46: 20 steps, losses and weights bitwise equal, whatever is done with the RNG."""

    def train(use_checkpoint: bool) -> tuple[list[float], list[Tensor]]:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses = []
        for step in range(20):
            set_step(model, step)
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(32, 32, generator=generator)
            optimizer.zero_grad()
            y = (
                checkpoint(model, x, use_reentrant=False, preserve_rng_state=preserve)
                if use_checkpoint
                else model(x)
            )
            loss = (y - x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, [p.detach().clone() for p in model.parameters()]

    (losses, weights), (again, weights_again) = train(False), train(True)
    assert losses == again
    assert equal(weights, weights_again)
    assert losses[-1] < losses[0]


def test_a_backward_uses_the_noise_of_its_forward() -> None:
    model, x = mlp(), torch.randn(32, 32)
    set_step(model, 1)
    model(x).sum().backward()
    expected = gradients(model)
    model.zero_grad()
    y = model(x)
    set_step(model, 2)
    y.sum().backward()
    assert equal(gradients(model), expected)


def test_noise_moves_with_step_microbatch_seed_and_name_only() -> None:
    """Edge case B40, for a layer."""
    x = torch.randn(32, 32)
    model = mlp()
    y = model(x)
    assert torch.equal(model(x), y)
    for other in ((1, 0), (0, 1)):
        set_step(model, *other)
        assert not torch.equal(model(x), y)
    set_step(model, 0)
    assert torch.equal(model(x), y)
    for how in ({"layer_name": "1"}, {"seed": 1}):
        twin = nn.Linear(32, 64, recipe=STOCHASTIC, **({"layer_name": "0", "seed": 0} | how))
        twin.load_state_dict(model[0].state_dict())
        assert not torch.equal(twin(x), model[0](x))


def test_errors_of_two_layers_with_equal_tensors_are_uncorrelated() -> None:
    """Edge case B41: dX of layers that share x, W and dY but not the name."""
    dy, samples = torch.randn(64, 64), []
    recipe = LinearRecipe(
        dgrad=Gemm(a=Operand(format=f.NVFP4, rounding=Rounding.STOCHASTIC_8)),
    )
    for name in ("blocks.0.up", "blocks.1.up"):
        linear = nn.Linear(64, 64, bias=False, recipe=recipe, layer_name=name)
        with torch.no_grad():
            linear.weight.copy_(torch.eye(64))
        steps = []
        for step in range(16):
            linear.set_step(step)
            x = torch.zeros(64, 64, requires_grad=True)
            linear(x).backward(dy)
            assert x.grad is not None
            steps.append(x.grad)
        rounded = torch.stack(steps)
        # what is left after the mean of 16 steps is the noise of each
        samples.append((rounded - rounded.mean(dim=0)).flatten())
    correlation = torch.corrcoef(torch.stack(samples))[0, 1].item()
    # 15 of 16 samples of each value are free
    assert abs(correlation) < 5 / (15 * 64 * 64) ** 0.5


ACCUMULATING = {
    "bf16": recipes.get("bf16").linear,
    "mxfp4": LinearRecipe.uniform(f.MXFP4),
    "mxfp8": LinearRecipe.uniform(f.MXFP8_E4M3),
    "fp8 1x32": LinearRecipe.uniform(f.get("fp8_1x128_e4m3_pow2").replace(block=(1, 32))),
    "nvfp4 one level": LinearRecipe.uniform(f.NVFP4_ONE_LEVEL),
}


def exact_data(rows: int, columns: int, seed: int) -> Tensor:
    """Few bits, so that products and their sums are exact in float32 in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-6, 7, (rows, columns), generator=generator).float()


@pytest.mark.parametrize("name", ACCUMULATING)
def test_accumulated_gradients_are_those_of_the_whole_batch(name: str) -> None:
    """Edge case B55: 4 microbatches of whole blocks, and no scale that covers the tensor."""
    linear = nn.Linear(64, 32, recipe=ACCUMULATING[name])
    with torch.no_grad():
        linear.weight.copy_(exact_data(32, 64, 1))
        linear.bias.copy_(exact_data(1, 32, 2)[0])
    x, dy = exact_data(128, 64, 3), exact_data(128, 32, 4)
    y = linear(x)
    y.backward(dy)
    whole = gradients(linear)
    linear.zero_grad()
    for microbatch in range(4):
        linear.set_step(0, microbatch)
        rows = slice(32 * microbatch, 32 * microbatch + 32)
        part = linear(x[rows])
        assert torch.equal(part, y[rows])
        part.backward(dy[rows])
    assert equal(gradients(linear), whole)


def test_accumulated_float64_gradients_of_a_layer_without_quantization() -> None:
    """Edge case B55, where the sums are not exact: 128 products and sums, each within 2^-53."""
    linear = nn.Linear(64, 32).double()
    x, dy = torch.randn(128, 64).double(), torch.randn(128, 32).double()
    linear(x).backward(dy)
    assert linear.weight.grad is not None
    whole = linear.weight.grad.clone()
    linear.zero_grad()
    for rows in torch.arange(128).split(32):
        linear(x[rows]).backward(dy[rows])
    bound = 2 * 130 * 2.0**-53 * (dy.abs().t() @ x.abs())
    assert ((linear.weight.grad - whole).abs() <= bound).all()
    assert ((whole - dy.t() @ x).abs() <= bound).all()


def test_with_a_scale_per_tensor_the_operand_is_the_microbatch() -> None:
    """Edge case B55: then the largest value of one microbatch does not reach the others."""
    linear = nn.Linear(64, 32, recipe=LinearRecipe.uniform(f.NVFP4))
    x = torch.randn(64, 64)
    x[0, 0] = 1e4
    assert not torch.equal(linear(x)[32:], linear(x[32:]))
    assert torch.equal(linear(x)[:32], linear(x[:32]))


@pytest.mark.parametrize("name", ACCUMULATING)
def test_a_layer_called_twice_gets_both_gradients(name: str) -> None:
    """Edge case B55: a layer that is shared within one forward."""
    linear = nn.Linear(64, 64, bias=False, recipe=ACCUMULATING[name])
    with torch.no_grad():
        linear.weight.copy_(exact_data(64, 64, 1))
    x, z, dy = (exact_data(32, 64, seed) for seed in (2, 3, 4))
    (linear(x) + linear(z)).backward(dy)
    both = gradients(linear)
    linear.zero_grad()
    linear(x).backward(dy)
    linear(z).backward(dy)
    assert equal(gradients(linear), both)


def by_data(linear: nn.Linear, new: Tensor) -> None:
    linear.weight.data.copy_(new)


def by_no_grad(linear: nn.Linear, new: Tensor) -> None:
    with torch.no_grad():
        linear.weight.copy_(new)


def by_state_dict(linear: nn.Linear, new: Tensor) -> None:
    linear.load_state_dict({"weight": new, "bias": linear.bias.detach()})


def by_assignment(linear: nn.Linear, new: Tensor) -> None:
    linear.weight = torch.nn.Parameter(new.clone())


def by_storage(linear: nn.Linear, new: Tensor) -> None:
    linear.weight.data = new.clone()


def by_optimizer(linear: nn.Linear, new: Tensor) -> None:
    optimizer = torch.optim.SGD([linear.weight], lr=1.0)
    linear.weight.grad = linear.weight.detach() - new
    optimizer.step()


def by_numpy(linear: nn.Linear, new: Tensor) -> None:
    linear.weight.detach().numpy()[...] = new.numpy()


WRITES = [by_data, by_no_grad, by_state_dict, by_assignment, by_storage, by_optimizer, by_numpy]


@pytest.mark.parametrize("write", WRITES)
def test_every_write_to_a_weight_is_seen(write: Callable[[nn.Linear, Tensor], None]) -> None:
    """Edge case B56: also those that do not count up the tensor's version."""
    linear = nn.Linear(64, 32, recipe=NVFP4)
    x = torch.randn(16, 64)
    before = linear(x)
    # powers of two apart, so that the optimizer's subtraction is exact
    new = linear.weight.detach() * 2
    write(linear, new)
    assert torch.equal(linear.weight.detach(), new)
    fresh = nn.Linear(64, 32, recipe=NVFP4)
    with torch.no_grad():
        fresh.weight.copy_(new)
        fresh.bias.copy_(linear.bias)
    after = linear(x)
    assert not torch.equal(after, before)
    assert torch.equal(after, fresh(x))


def through_torch_save(model: torch.nn.Module) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES: list[Callable[[torch.nn.Module], Any]] = [
    copy.deepcopy,
    lambda model: pickle.loads(pickle.dumps(model)),
    through_torch_save,
]


@pytest.mark.parametrize("copied", COPIES)
def test_copies_compute_the_same_bits(copied: Callable[[torch.nn.Module], Any]) -> None:
    """Edge case B59: deepcopy, pickle and torch.save, before and after a forward and backward."""
    x = torch.randn(32, 32)
    for forwards in (0, 1):
        model = mlp()
        set_step(model, 5, 2)
        for _ in range(forwards):
            model(x).sum().backward()
        other = copied(model)
        assert torch.equal(other(x), model(x))
        other(x).sum().backward()
        model.zero_grad()
        model(x).sum().backward()
        if forwards == 0:
            assert equal(gradients(other), gradients(model))
        set_step(other, 6)
        assert not torch.equal(other(x), model(x))


def test_keys_are_those_of_a_plain_layer(tmp_path: Path) -> None:
    """Edge cases B60 and B63: each tensor once, under torch.nn.Linear's name, strictly loadable."""
    ours, plain = (
        mlp(),
        torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)),
    )
    assert list(ours.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(ours.state_dict(), strict=True)
    ours.load_state_dict(plain.state_dict(), strict=True)
    names = [n for n, _ in ours.named_parameters()] + [n for n, _ in ours.named_buffers()]
    assert len(names) == len(set(names))
    safetensors.torch.save_model(ours, str(tmp_path / "w"))
    assert set(safetensors.torch.load_file(tmp_path / "w")) == set(plain.state_dict())


def test_no_bias_no_key() -> None:
    assert list(nn.Linear(8, 4, bias=False).state_dict()) == ["weight"]


def test_layers_built_on_the_meta_device_come_to_life() -> None:
    """Edge case B62: to_empty leaves no noise uninitialized, and loading brings equal bits."""
    model = mlp()
    set_step(model, 3, 1)
    with torch.device("meta"):
        ghost = mlp()
        set_step(ghost, 3, 1)
    assert ghost(torch.empty(5, 32, device="meta")).shape == (5, 32)
    ghost.to_empty(device="cpu")
    for alive, reference in zip(ghost.buffers(), model.buffers(), strict=True):
        assert torch.equal(alive, reference)
    ghost.load_state_dict(model.state_dict())
    x = torch.randn(32, 32)
    assert torch.equal(ghost(x), model(x))
    assert not any(buffer.is_meta for buffer in ghost.buffers())


def test_moving_a_layer_keeps_its_noise() -> None:
    linear = nn.Linear(32, 64, recipe=STOCHASTIC, layer_name="up", seed=3)
    linear.set_step(9, 4)
    expected = fp4lab.noise_state(3, "up", step=9, microbatch=4)
    for moved in (linear.double(), linear.bfloat16(), linear.to("cpu"), linear.float()):
        assert torch.equal(moved.noise, expected)


def test_frozen_parameters_get_no_gradient() -> None:
    linear = nn.Linear(32, 64, recipe=NVFP4)
    linear.weight.requires_grad_(False)
    x = torch.randn(16, 32, requires_grad=True)
    linear(x).sum().backward()
    assert linear.weight.grad is None
    assert x.grad is not None
    linear.weight.requires_grad_(True)
    linear(x.detach()).sum().backward()
    assert linear.weight.grad is not None


def test_no_graph_no_gradient() -> None:
    linear, x = nn.Linear(32, 64, recipe=NVFP4), torch.randn(16, 32)
    with torch.no_grad():
        y = linear(x)
    assert not y.requires_grad
    assert torch.equal(y, linear(x))
    with torch.inference_mode():
        assert torch.equal(linear(x), y)


def test_a_layer_refuses_the_recipe_of_a_model() -> None:
    with pytest.raises(InputError, match=r"recipe=Recipe .* give the \.linear"):
        nn.Linear(16, 16, recipe=recipes.get("nvfp4"))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.cfloat])
def test_inputs_that_are_no_floats_are_refused(dtype: torch.dtype) -> None:
    linear = nn.Linear(16, 16, recipe=NVFP4)
    with pytest.raises(InputError, match=f"input of layer 'linear' has dtype {dtype}"):
        linear(torch.ones(16, 16).to(dtype))


@pytest.mark.parametrize(
    ("how", "message"), [({"ragged": "crop"}, "ragged='crop'"), ({"seed": 1.5}, "seed=1.5")]
)
def test_arguments_are_checked_when_a_layer_is_made(how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        nn.Linear(16, 16, **how)


def test_a_layer_made_or_moved_in_inference_mode_can_be_trained() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32))
    with torch.inference_mode():
        convert(model, recipes.get("nvfp4"))
        model.float()
    assert nn.set_step(model, 3) == 1
    model(torch.randn(16, 32)).sum().backward()
    layer = model[0]
    assert isinstance(layer, nn.Linear)
    assert layer.noise[2] == 3


def test_shared_memory_holds_the_noise_too() -> None:
    layer = nn.Linear(32, 32, recipe=recipes.get("nvfp4").linear)
    layer.share_memory()
    assert layer.noise.is_shared()


def test_the_default_device_is_not_the_noise_s() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32))
    with torch.device("meta"):
        convert(model, recipes.get("nvfp4"))
        assert nn.Linear(32, 32).noise.is_meta
    nn.set_step(model, 2)
    assert model(torch.randn(16, 32)).shape == (16, 32)
