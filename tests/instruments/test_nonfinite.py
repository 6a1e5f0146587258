from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fp4lab.instruments.nonfinite import Finding, first_nonfinite


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, 4)
        self.down = nn.Linear(4, 4)

    def forward(self, x_BD: Tensor) -> Tensor:
        normed = self.norm(x_BD)
        result: Tensor = x_BD + self.down(torch.relu(self.up(normed))) + self.up(normed)
        return result


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x_BD: Tensor) -> Tensor:
        for block in self.blocks:
            x_BD = block(x_BD)
        return x_BD


class BadGradient(torch.autograd.Function):
    """The identity, whose gradient is a given value."""

    @staticmethod
    def forward(ctx: object, x: Tensor, value: float) -> Tensor:
        ctx.value = value  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        return torch.full_like(gradient, ctx.value), None  # type: ignore[attr-defined]


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


def find(model: nn.Module, x_BD: Tensor) -> Finding | None:
    return first_nonfinite(model, lambda: model(x_BD).square().mean())


def test_a_healthy_model_has_no_finding_and_keeps_no_hooks(model: Model) -> None:
    x_BD = torch.randn(3, 4)
    assert find(model, x_BD) is None
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x_BD).square().mean().backward()
    plain = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(plain) == 12
    assert all(torch.equal(a, b) for a, b in zip(gradients, plain, strict=True))


def test_a_nan_in_the_input(model: Model) -> None:
    x_BD = torch.randn(3, 4)
    x_BD[1, 2] = torch.nan
    assert find(model, x_BD) == Finding("", "input", "NaN")


def test_an_infinite_parameter(model: Model) -> None:
    with torch.no_grad():
        model.blocks[1].down.bias[0] = -torch.inf  # type: ignore[union-attr,operator]
    assert find(model, torch.randn(3, 4)) == Finding("blocks.1.down", "parameter bias", "Inf")


def test_a_nan_buffer(model: Model) -> None:
    model.blocks[0].register_buffer("table", torch.tensor([0.0, torch.nan]))
    assert find(model, torch.randn(3, 4)) == Finding("blocks.0", "buffer table", "NaN")


def test_an_overflow_in_an_output_names_the_innermost_module(model: Model) -> None:
    with torch.no_grad():
        model.blocks[1].up.weight.fill_(3e38)  # type: ignore[union-attr,operator]
    found = find(model, torch.randn(3, 4))
    assert found is not None
    assert (found.layer, found.tensor) == ("blocks.1.up", "output")


def test_arithmetic_between_modules_shows_at_the_next_input(model: Model) -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.second(torch.log(self.first(x) * 0 - 1))
            return result

    assert find(Between(), torch.randn(3, 4)) == Finding("second", "input", "NaN")


def test_a_loss_that_overflows_by_itself(model: Model) -> None:
    found = first_nonfinite(model, lambda: model(torch.ones(1, 4)).sum() * torch.inf)
    assert found is not None
    assert (found.layer, found.tensor) == ("loss", "value")


@pytest.mark.parametrize(("value", "kind"), [(torch.nan, "NaN"), (torch.inf, "Inf")])
def test_a_gradient_that_breaks_inside_a_module(model: Model, value: float, kind: str) -> None:
    class Broken(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            weight: Tensor = BadGradient.apply(self.weight, value)  # type: ignore[no-untyped-call]
            return nn.functional.linear(input, weight, self.bias)

    broken = Broken(4, 4)
    model.blocks[0].down = broken
    assert find(model, torch.randn(3, 4)) == Finding("blocks.0.down", "gradient of weight", kind)


def test_a_gradient_sent_to_an_input_is_blamed_on_its_sender(model: Model) -> None:
    class Broken(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            x: Tensor = BadGradient.apply(input, torch.nan)  # type: ignore[no-untyped-call]
            return super().forward(x)

    # Two modules read the same normalized tensor, so the sum alone would not name the sender.
    model.blocks[1].up = Broken(4, 4)
    found = find(model, torch.randn(3, 4))
    assert found == Finding("blocks.1.up", "gradient of the input", "NaN")


def test_a_gradient_between_loss_and_model_reaches_the_output(model: Model) -> None:
    def loss() -> Tensor:
        y: Tensor = BadGradient.apply(model(torch.ones(2, 4)), torch.inf)  # type: ignore[no-untyped-call]
        return y.sum()

    found = first_nonfinite(model, loss)
    assert found is not None
    # The model and its last block return the same tensor: either name is true.
    assert found.layer in {"", "blocks.1"}
    assert (found.tensor, found.value) == ("gradient of the output", "Inf")


def test_a_frozen_model_is_searched_forward_only(model: Model) -> None:
    model.requires_grad_(requires_grad=False)
    x_BD = torch.randn(3, 4)
    assert find(model, x_BD) is None
    assert find(model, x_BD * torch.inf) is not None


def test_integer_and_nested_arguments_are_watched() -> None:
    class Nested(nn.Module):
        def forward(
            self, table: dict[str, list[Tensor]], *, index: Tensor
        ) -> tuple[Tensor, Tensor]:
            return table["x"][0][index], index

    model = Nested()
    x = torch.tensor([0.0, torch.inf])

    def loss() -> Tensor:
        picked, _ = model({"x": [x]}, index=torch.tensor([0]))
        result: Tensor = picked.sum()
        return result

    found = first_nonfinite(model, loss)
    assert found == Finding("", "input", "Inf")


def test_a_compiled_model_is_searched_eagerly(model: Model) -> None:
    model.compile(backend="eager")
    with torch.no_grad():
        model.blocks[0].norm.weight[0] = torch.nan  # type: ignore[union-attr,operator]
    assert find(model, torch.randn(3, 4)) == Finding("blocks.0.norm", "parameter weight", "NaN")
