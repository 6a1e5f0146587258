"""The warning of a training that never sets the step of its rounding noise, and its silence."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from fp4lab.nn import convert, set_recipe, set_step

X = torch.randn(32, 32, generator=torch.Generator().manual_seed(1))


def converted(recipe: str = "nvfp4") -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    convert(model, recipe)
    return model


def backward(model: nn.Module, call: Callable[[Tensor], Tensor] | None = None) -> None:
    (call or model)(X).square().mean().backward()


def update(model: nn.Module) -> None:
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def said(run: Callable[[], None]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        run()
    return [str(one.message) for one in caught]


def test_a_second_step_with_the_noise_of_the_first_is_told_once() -> None:
    model = converted()

    def train() -> None:
        for _ in range(4):
            backward(model)
            update(model)

    (message,) = said(train)
    assert "call fp4lab.set_step(model, step) before each" in message
    assert not said(train)


@pytest.mark.parametrize("recipe", ["bf16", "mxfp8", "nvfp4-sr"])
def test_recipes_without_noise_need_no_step(recipe: str) -> None:
    model = converted(recipe)
    for _ in range(3):
        backward(model)
        update(model)


def test_a_recipe_that_becomes_stochastic_is_watched() -> None:
    model = converted("bf16")
    backward(model)
    update(model)
    set_recipe(model, "nvfp4")
    backward(model)
    update(model)
    with pytest.warns(UserWarning, match="set_step"):
        backward(model)


def test_a_step_that_was_set_once_ends_the_watch() -> None:
    """Also where an optimizer looks at several weights in a step, and after a new conversion."""
    model = converted()
    set_step(model, 0)
    for recipe in ("nvfp4", "nvfp4_base+sr"):
        convert(model, recipe)
        for _ in range(3):
            backward(model)
            update(model)


def test_several_backwards_with_the_same_weights_are_no_second_step() -> None:
    model = converted()
    layer = model[0]
    for _ in range(3):
        backward(model)
    y = layer(layer(X))
    y.sum().backward(retain_graph=True)
    y.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_are_no_second_step(reentrant: bool) -> None:
    model = converted()
    x = X.clone().requires_grad_()
    for _ in range(2):
        backward(model, lambda _: checkpoint(model, x, use_reentrant=reentrant))
    update(model)
    with pytest.warns(UserWarning, match="set_step"):
        backward(model, lambda _: checkpoint(model, x, use_reentrant=reentrant))


def test_without_a_backward_there_was_no_step() -> None:
    """Weights that are written after a look at the model, and evaluation between steps."""
    model = converted()
    model(X)
    update_by_hand(model)
    backward(model)
    update_by_hand(model)
    with torch.no_grad():
        model(X)
    model.eval()
    model(X)


def update_by_hand(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)


def test_weights_that_are_loaded_are_no_step() -> None:
    model = converted()
    backward(model)
    model.load_state_dict(converted().state_dict())
    backward(model)
    update_by_hand(model)
    with pytest.warns(UserWarning, match="set_step"):
        backward(model)


def test_weights_that_are_made_anew_are_not_watched() -> None:
    """Pruned layers, other weights given for a call, and copies: no update can be seen there."""
    from torch.nn.utils import prune

    model = converted()
    prune.random_unstructured(model[0], "weight", amount=0.5)
    prune.random_unstructured(model[2], "weight", amount=0.5)
    for _ in range(2):
        backward(model)
        update(model)
    other = converted()
    for factor in (1.0, 2.0):
        weights = {name: (factor * p).detach() for name, p in other.named_parameters()}
        weights = {name: value.requires_grad_() for name, value in weights.items()}
        backward(other, lambda x, given=weights: functional_call(other, given, (x,)))


def test_a_copy_is_watched_by_itself() -> None:
    model = converted()
    backward(model)
    update(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        backward(twin)
        update(twin)
        with pytest.warns(UserWarning, match="set_step"):
            backward(twin)


@pytest.mark.slow
def test_compiled_layers_are_not_watched() -> None:
    """The count of a weight's updates is no part of a graph: one graph, and no warning."""
    model = converted()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        backward(model, compiled)
        update(model)
    set_step(model, 1)
    with torch._dynamo.config.patch(error_on_recompile=True):
        backward(model, compiled)
