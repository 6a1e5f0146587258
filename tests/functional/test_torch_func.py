"""The transforms of torch.func, over functions with quantization inside."""

from __future__ import annotations

import copy
from typing import TypeAlias

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vmap,
)

import fp4lab
from fp4lab import formats, nn, recipes
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    # which torch itself uses for forward-mode derivatives
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
]


Weights: TypeAlias = dict[str, torch.Tensor]
CLIPS = formats.MXFP4.replace(name="clips", scale_rule=formats.ScaleRule.FLOOR)


def weighted(x: torch.Tensor, policy: str) -> torch.Tensor:
    y = fp4lab.fake_quantize(x, CLIPS, gradient=policy)  # type: ignore[arg-type]
    return (y * torch.arange(1.0, x.numel() + 1).view(x.shape)).sum()


@pytest.mark.parametrize("policy", ["identity", "masked"])
def test_grad_is_that_of_backward(policy: str) -> None:
    x = torch.randn(4, 32)
    x[0, 0] = 7.9
    leaf = x.clone().requires_grad_()
    weighted(leaf, policy).backward()
    assert leaf.grad is not None
    assert torch.equal(grad(weighted)(x, policy), leaf.grad)
    assert (leaf.grad == 0).any() == (policy == "masked")
    many = torch.randn(3, 4, 32)
    found = vmap(grad(weighted), in_dims=(0, None))(many, policy)
    assert torch.equal(found, torch.stack([grad(weighted)(one, policy) for one in many]))


@pytest.mark.parametrize("policy", ["identity", "masked"])
def test_derivatives_through_vmap(policy: str) -> None:
    many = torch.randn(3, 4, 32)
    many[0, 0, 0] = 7.9

    def summed(many: torch.Tensor) -> torch.Tensor:
        return vmap(lambda x: weighted(x, policy))(many).sum()

    expected = torch.stack([grad(weighted)(one, policy) for one in many])
    assert torch.equal(grad(summed)(many), expected)
    leaf = many.clone().requires_grad_()
    summed(leaf).backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, expected)
    assert jvp(summed, (many,), (torch.ones_like(many),))[1] == expected.sum()
    noise = fp4lab.noise_state(0)
    how = {"rounding": formats.Rounding.STOCHASTIC_8, "noise": noise}
    rounded = vmap(lambda x: fp4lab.fake_quantize(x, CLIPS, **how))(leaf)  # type: ignore[arg-type]
    assert rounded.requires_grad


def test_compiled_transforms_never_give_a_gradient_of_zero() -> None:
    """torch 2.13 compiles derivatives of an autograd.Function to 0; then it is not compiled."""
    x = torch.randn(4, 32)
    layer = nn.Linear(32, 16, recipe=recipes.get("nvfp4").linear)
    functions = (
        grad(lambda x: weighted(x, "identity")),
        lambda x: jvp(lambda x: weighted(x, "identity"), (x,), (torch.ones_like(x),))[1],
        grad(lambda x: functional_call(layer, {}, (x.repeat(4, 1),)).square().sum()),
    )
    for function in functions:
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="would have gradients of 0"):
            torch.compile(function, backend="eager", fullgraph=True)(x)
    for function in functions[:2]:
        expected = function(x)
        assert expected.count_nonzero() == expected.numel()
        torch._dynamo.reset()
        assert torch.equal(torch.compile(function, backend="eager")(x), expected)
    with torch.no_grad():
        compiled = torch.compile(
            vmap(lambda x: fp4lab.fake_quantize(x, CLIPS)), backend="eager", fullgraph=True
        )
        many = torch.randn(3, 4, 32)
        assert torch.equal(compiled(many), fp4lab.fake_quantize(many, CLIPS))


@pytest.mark.parametrize("fmt", [formats.NVFP4, formats.MXFP8_E4M3], ids=lambda fmt: fmt.name)
def test_vmap_quantizes_each_sample(fmt: BlockFormat) -> None:
    many = torch.randn(3, 4, 32) * torch.tensor([1.0, 100.0, 1e-3]).view(3, 1, 1)
    apart = torch.stack([fp4lab.fake_quantize(one, fmt) for one in many])
    assert torch.equal(vmap(lambda x: fp4lab.fake_quantize(x, fmt))(many), apart)


def test_jacobian_is_the_identity() -> None:
    x = torch.randn(1, 16)
    jacobian = jacrev(lambda x: fp4lab.fake_quantize(x, formats.NVFP4))(x)
    assert torch.equal(jacobian.view(16, 16), torch.eye(16))


@pytest.mark.parametrize("policy", ["identity", "masked"])
def test_forward_mode_agrees_with_backward(policy: str) -> None:
    x = torch.randn(1, 32)
    x[0, 0] = 7.9
    backward = grad(weighted)(x, policy)
    _, along = jvp(lambda x: weighted(x, policy), (x,), (torch.ones_like(x),))
    assert along == backward.sum()
    assert torch.equal(jacfwd(weighted)(x, policy), backward)
    with forward_ad.dual_level():
        for leaf in (x, x.clone().requires_grad_()):
            y = weighted(forward_ad.make_dual(leaf, torch.ones_like(x)), policy)
            assert forward_ad.unpack_dual(y).tangent == backward.sum()


def test_second_derivatives() -> None:
    x = torch.randn(1, 32)
    found = hessian(lambda x: fp4lab.fake_quantize(x, CLIPS).square().sum())(x)
    assert torch.equal(found.view(32, 32), 2 * torch.eye(32))


def test_gradients_of_a_layer() -> None:
    layer = nn.Linear(32, 16, recipe=recipes.get("nvfp4").linear)
    x, again = torch.randn(16, 32), copy.deepcopy(layer)
    found = grad(lambda weights: functional_call(layer, weights, (x,)).square().sum())(
        dict(layer.named_parameters())
    )
    again(x).square().sum().backward()
    for name, parameter in again.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(found[name], parameter.grad)


def test_layers_under_vmap_are_those_of_each_sample() -> None:
    """Gradients of each sample, and an ensemble whose layers have noise of their own."""
    linear = recipes.get("nvfp4").linear
    layers = [nn.Linear(32, 16, recipe=linear, layer_name=f"{n}") for n in range(3)]
    x = torch.randn(3, 16, 32)
    state = dict(layers[0].named_parameters()), dict(layers[0].named_buffers())

    def loss(weights: Weights, buffers: Weights, x: torch.Tensor) -> torch.Tensor:
        return functional_call(layers[0], (weights, buffers), (x,)).square().sum()

    found = vmap(grad(loss), in_dims=(None, None, 0))(*state, x)
    each = [grad(loss)(*state, sample) for sample in x]
    for name in state[0]:
        assert torch.equal(found[name], torch.stack([gradient[name] for gradient in each]))
    weights, buffers = stack_module_state(layers)  # type: ignore[arg-type]
    ensemble = vmap(grad(loss))(weights, buffers, x)
    for n, layer in enumerate(layers):
        layer(x[n]).square().sum().backward()
        for name, parameter in layer.named_parameters():
            assert parameter.grad is not None
            assert torch.equal(ensemble[name][n], parameter.grad)


def test_vmap_over_given_scales_and_rows() -> None:
    many, amax = torch.randn(3, 4, 32), torch.rand(3, 1) + 4
    found = vmap(lambda x, a: fp4lab.fake_quantize(x, formats.NVFP4, amax=a))(many, amax)
    each = [fp4lab.fake_quantize(x, formats.NVFP4, amax=a) for x, a in zip(many, amax, strict=True)]
    assert torch.equal(found, torch.stack(each))


def test_a_layer_says_that_it_has_no_forward_mode_derivative() -> None:
    layer, x = nn.Linear(32, 16, recipe=recipes.get("nvfp4").linear), torch.randn(16, 32)
    message = r"layer 'linear' has a tangent, .* torch\.func\.grad or vjp, or `with fp4lab\.dis"
    with pytest.raises(InputError, match=message):
        jvp(layer, (x,), (x,))
    with forward_ad.dual_level():
        with pytest.raises(InputError, match=message):
            layer(forward_ad.make_dual(x, x))
        # what has no tangent is computed as ever, gradients included
        y = layer(x)
        y.sum().backward()
    assert layer.weight.grad is not None
    assert torch.equal(y, layer(x))
