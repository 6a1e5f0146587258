"""Inside of `fp4lab.disabled` a converted model is the unconverted one, and outside it is not."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fp4lab
from fp4lab import recipes
from fp4lab.errors import InputError
from fp4lab.nn import Linear, convert, disabled, set_recipe, set_step, unconvert


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(32, 32, bias=i == 0) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x).relu()
        return x


def pair(recipe: str = "nvfp4") -> tuple[Model, Model]:
    """A model, and the same converted."""
    torch.manual_seed(0)
    plain = Model()
    model = copy.deepcopy(plain)
    convert(model, recipe)
    return plain, model


def results(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Of a forward and a backward: the output and all gradients."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    y.float().square().sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in model.parameters() if p.grad is not None)]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True)
    )


X = torch.randn(32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp8", "bf16"])
@pytest.mark.parametrize("autocast", [False, True])
def test_inside_it_is_the_unconverted_model_bit_for_bit(recipe: str, autocast: bool) -> None:
    plain, model = pair(recipe)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        expected, quantized = results(plain, X), results(model, X)
        with disabled(model):
            assert same(results(model, X), expected)
        assert same(results(model, X), quantized)
    assert not same(quantized, expected)


# which torch itself uses for forward-mode derivatives
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_inputs_that_only_a_plain_layer_takes() -> None:
    """A number of tokens that fills no block, and forward-mode derivatives."""
    plain, model = pair()
    x = X[:5]
    with pytest.raises(InputError, match="5 tokens"):
        results(model, x)
    with disabled(model):
        assert same(results(model, x), results(plain, x))
        ours, theirs = (torch.func.jvp(m, (x,), (x,)) for m in (model, plain))
    assert torch.equal(ours[1], theirs[1])


def test_blocks_nest_and_end_with_an_exception() -> None:
    plain, model = pair()
    quantized, expected = model(X), plain(X)
    with disabled(model):
        with disabled(model.blocks[0]), disabled(model):
            assert torch.equal(model(X), expected)
        assert torch.equal(model(X), expected)
        with pytest.raises(KeyError), disabled(model):
            raise KeyError
        assert torch.equal(model(X), expected)
    assert torch.equal(model(X), quantized)
    with pytest.raises(ZeroDivisionError), disabled(model):
        raise ZeroDivisionError
    assert torch.equal(model(X), quantized)


def test_a_part_of_a_model_and_one_layer() -> None:
    plain, model = pair()
    alike = copy.deepcopy(model)
    unconvert(alike.blocks[1])
    quantized = model(X)
    with disabled(model.blocks[1]):
        assert torch.equal(model(X), alike(X))
        assert not torch.equal(model(X), plain(X))
    assert torch.equal(model(X), quantized)


def test_a_backward_is_that_of_its_forward() -> None:
    plain, model = pair()
    expected, quantized = results(plain, X), results(model, X)
    model.zero_grad()
    with disabled(model):
        y = model(X)
    y.square().sum().backward()
    assert same([p.grad for p in model.parameters() if p.grad is not None], expected[2:])
    model.zero_grad()
    y = model(X)
    with disabled(model):
        y.square().sum().backward()
    assert same([p.grad for p in model.parameters() if p.grad is not None], quantized[2:])


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_inside(reentrant: bool) -> None:
    plain, model = pair()
    expected, quantized = results(plain, X), results(model, X)

    class Recomputed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint(model, x, use_reentrant=reentrant)
            return y

    recomputed = Recomputed()
    recomputed.model = model
    with disabled(recomputed):
        assert same(results(recomputed, X), expected)
    assert same(results(recomputed, X), quantized)


def test_hooks_run_inside_too() -> None:
    _, model = pair()
    calls: list[str] = []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append("pre"))
    model.blocks[0].register_forward_hook(lambda *_: calls.append("post"))
    model.blocks[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    with disabled(model):
        results(model, X)
    assert calls == ["pre", "post", "backward"]


def test_what_is_set_inside_holds_after() -> None:
    plain, model = pair()
    other = copy.deepcopy(model)
    with disabled(model):
        set_step(model, 7)
        set_recipe(model, "mxfp4")
        assert torch.equal(model(X), plain(X))
    set_step(other, 7)
    set_recipe(other, "mxfp4")
    assert same(results(model, X), results(other, X))


def test_layers_that_are_converted_inside_follow_their_recipe() -> None:
    plain, model = pair()
    with disabled(model):
        assert unconvert(model) == 3
        convert(model, "nvfp4")
        assert not torch.equal(model(X), plain(X))
    assert not torch.equal(model(X), plain(X))
    with disabled(model):
        unconvert(model)
    assert torch.equal(model(X), plain(X))
    # nothing of the block is left that a new conversion would stumble over
    assert len(convert(model, "nvfp4").names("converted")) == 3


def test_copies_made_inside_are_not_disabled() -> None:
    _, model = pair()
    quantized = model(X)
    with disabled(model):
        twins = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for twin in twins:
        assert torch.equal(twin(X), quantized)


def test_layers_made_by_hand() -> None:
    layer = Linear(32, 32, recipe=recipes.get("nvfp4").linear)
    with disabled(layer):
        assert torch.equal(layer(X), nn.functional.linear(X, layer.weight, layer.bias))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(16, 16)), r"no converted layer; call fp4lab\.convert"),
        ("model", "model='model' is not a Module"),
    ],
)
def test_nothing_to_disable(model: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message), fp4lab.disabled(model):
        pass


class Counter:
    """An eager backend of torch.compile that counts the graphs it is given."""

    def __init__(self) -> None:
        self.graphs = 0
        self.compile = torch._dynamo.lookup_backend("aot_eager")

    def __call__(self, graph: object, inputs: object) -> object:
        self.graphs += 1
        return self.compile(graph, inputs)


@pytest.mark.slow
def test_a_compiled_model_is_compiled_for_both_and_never_stale() -> None:
    plain, model = pair()
    count = Counter()
    compiled = torch.compile(model, fullgraph=True, backend=count)
    expected = results(plain, X)
    for step in range(3):
        set_step(model, step)
        quantized = results(model, X)
        assert same(results(compiled, X), quantized)
        with disabled(compiled):
            assert same(results(compiled, X), expected)
        assert same(results(compiled, X), quantized)
    assert count.graphs == 2
    with disabled(model.blocks[1]):
        assert same(results(compiled, X), results(model, X))
    set_recipe(model, "mxfp8")
    assert same(results(compiled, X), results(model, X))
    with disabled(model):
        assert same(results(compiled, X), expected)


@pytest.mark.slow
def test_a_block_inside_of_what_is_compiled() -> None:
    plain, model = pair()

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        with disabled(model):
            inside = model(x)
        return inside, model(x)

    inside, outside = torch.compile(both, fullgraph=True, backend="aot_eager")(X)
    assert torch.equal(inside, plain(X))
    assert torch.equal(outside, model(X))
    assert not torch.equal(inside, outside)
