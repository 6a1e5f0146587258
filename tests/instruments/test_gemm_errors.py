"""Errors of operands and products: against known constants, the public functions and the GEMMs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fp4lab import formats, recipes
from fp4lab.functional import error
from fp4lab.instruments.error_rows import LayerErrors, OperandError
from fp4lab.instruments.gemm_errors import _LayerGemms, gemm_errors
from fp4lab.nn import Linear, gemms
from fp4lab.recipes import LinearRecipe
from fp4lab.recipes.places import PLACES

QUANTIZED = ("fp8_tensor", "fp8_block", "mxfp8", "mxfp4", "nvfp4", "nvfp4_base", "nvfp4+rht.dgrad")


def layer(recipe: LinearRecipe, size: int = 128) -> Linear:
    return Linear(size, size, bias=False, recipe=recipe, layer_name="layer")


def one_layer_errors(recipe: LinearRecipe, size: int = 128) -> tuple[Linear, Tensor, LayerErrors]:
    model = layer(recipe, size)
    with torch.no_grad():
        model.weight.normal_()
    x = torch.randn(size, size, requires_grad=True)
    weights = torch.randn(size, size)

    def loss() -> Tensor:
        return (model(x) * weights).sum()  # type: ignore[no-any-return]

    return model, x, gemm_errors(model, loss)


def operand(errors: LayerErrors, gemm: str, name: str) -> OperandError:
    (row,) = [row for row in errors.operands if (row.gemm, row.operand) == (gemm, name)]
    return row


def test_full_precision_has_no_error_but_that_of_float32_sums() -> None:
    _, _, errors = one_layer_errors(LinearRecipe())
    assert len(errors.operands) == 6
    for row in errors.operands:
        assert (row.sqnr_db, row.relative_mse, row.underflow, row.saturation) == (None, 0, 0, 0)
        assert (row.cosine, row.gain, row.format) == (pytest.approx(1), 1, None)
    assert [row.product for row in errors.products] == ["Y", "dX", "dW"]
    for product in errors.products:
        # a sum of K products errs by at most K 2^-24 of the sum of magnitudes
        assert product.sqnr_db is None or product.sqnr_db > 100


def test_gaussian_operands_give_the_known_constants() -> None:
    """relMSE 9.04e-3 for 1x16 and 12.41e-3 for 16x16 blocks of N(0, 1); 6.8 % and 10.1 % underflow.

    With 65,536 values the relative standard error of a relMSE is below 1 %: 4 % is four of them.
    """
    _, _, errors = one_layer_errors(recipes.get("nvfp4").linear or LinearRecipe(), size=256)
    x, w = operand(errors, "fprop", "X"), operand(errors, "fprop", "W")
    assert (x.format, w.format) == ("nvfp4", "nvfp4_16x16")
    assert x.relative_mse == pytest.approx(9.04e-3, rel=0.04)
    assert w.relative_mse == pytest.approx(12.41e-3, rel=0.04)
    assert x.underflow == pytest.approx(0.068, rel=0.06)
    assert w.underflow == pytest.approx(0.101, rel=0.06)
    # independent errors of the operands add up in the product
    y = errors.products[0]
    assert y.relative_mse == pytest.approx((x.relative_mse or 0) + (w.relative_mse or 0), rel=0.05)


@pytest.mark.parametrize("name", ["nvfp4_base", "mxfp8"])
def test_operands_from_high_precision_agree_with_error(name: str) -> None:
    recipe = recipes.get(name).linear or LinearRecipe()
    model, x, errors = one_layer_errors(recipe)
    for tensor, gemm, label, axis in (
        (x, "fprop", "X", -1),
        (model.weight, "fprop", "W", -1),
        (model.weight, "dgrad", "W^T", -2),
        (x, "wgrad", "X^T", -2),
    ):
        row = operand(errors, gemm, label)
        assert row.format is not None
        expected = error(tensor.detach(), formats.get(row.format), axis=axis)
        found = (row.sqnr_db, row.relative_mse, row.cosine, row.gain, row.underflow, row.saturation)
        # the sums run over the transpose, in another order
        assert found == pytest.approx(tuple(expected), rel=1e-12)


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_operands_measured_are_those_multiplied(name: str) -> None:
    """Their float64 product is the layer's, to the rounding of its float32 sums."""
    recipe = recipes.get(name).linear or LinearRecipe()
    model = layer(recipe)
    x, w, dy = torch.randn(256, 128), model.weight.detach(), torch.randn(256, 128) ** 3
    measured = _LayerGemms("layer", model, x, w)
    how = measured.how
    tensors = {"x": x, "w": w, "dy": dy}
    results = {
        "fprop": gemms.fprop(x, w, recipe, how),
        "dgrad": gemms.dgrad(dy, w, recipe, how),
        "wgrad": gemms.wgrad(dy, x, recipe, how),
    }
    for gemm, result in results.items():
        qa, qb = (
            measured.operand(place, tensors[place.tensor])[0].double()
            for place in PLACES
            if place.gemm == gemm
        )
        qa = qa.t() if gemm == "wgrad" else qa
        qb = qb.t() if gemm == "fprop" else qb
        bound = (qa.abs() @ qb.abs()) * (qa.shape[1] + 4) * 2.0**-24
        assert ((qa @ qb).sub_(result).abs() <= bound).all(), gemm


class Net(nn.Module):
    """Two layers in use, one called twice, one never."""

    def __init__(self, recipe: LinearRecipe, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.unused = layer(recipe)
        self.second = layer(recipe)
        self.first = layer(recipe)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        if self.recompute:
            return checkpoint(self._rest, h, use_reentrant=False)  # type: ignore[no-any-return]
        return self._rest(h)

    def _rest(self, h: Tensor) -> Tensor:
        return self.second(self.second(h)).relu()  # type: ignore[no-any-return]


def net_errors(net: Net) -> tuple[Net, LayerErrors]:
    x = torch.randn(128, 128)
    return net, gemm_errors(net, lambda: net(x).square().mean())


def test_only_the_gemms_that_ran_have_rows() -> None:
    _, errors = net_errors(Net(recipes.get("mxfp4").linear or LinearRecipe()))
    # in the order of the model; the first layer's input needs no gradient
    assert [(row.layer, row.gemm) for row in errors.products] == [
        ("second", "fprop"), ("second", "dgrad"), ("second", "wgrad"),
        ("first", "fprop"), ("first", "wgrad"),
    ]  # fmt: skip


def test_recomputed_layers_are_measured_once_and_alike() -> None:
    recipe = recipes.get("nvfp4").linear or LinearRecipe()
    found = []
    for recompute in (False, True):
        torch.manual_seed(1)
        found.append(net_errors(Net(recipe, recompute=recompute))[1])
    assert found[0] == found[1]


def test_nothing_is_left_behind() -> None:
    net = Net(recipes.get("nvfp4").linear or LinearRecipe())
    net.first.weight.grad = torch.full_like(net.first.weight, 3.0)
    before = {name: tensor.clone() for name, tensor in net.named_parameters()}
    noise = net.first.noise.clone()
    net_errors(net)
    assert all(torch.equal(before[name], p) for name, p in net.named_parameters())
    assert torch.equal(net.first.noise, noise)
    assert bool((net.first.weight.grad == 3.0).all())
    assert net.second.weight.grad is None
    assert all(not m._forward_hooks for m in net.modules())


def test_the_hooks_go_when_the_pass_fails() -> None:
    net = Net(LinearRecipe())

    def fail() -> Tensor:
        net(torch.randn(128, 128))
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        gemm_errors(net, fail)
    assert all(not m._forward_hooks for m in net.modules())


def test_under_autocast_the_cast_is_not_an_error() -> None:
    """The layer sees bf16, and bf16 is what a bf16 recipe leaves alone."""
    model = layer(LinearRecipe.uniform(formats.BF16))
    x = torch.randn(64, 128)

    def loss() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float().square().mean()  # type: ignore[no-any-return]

    assert {row.sqnr_db for row in gemm_errors(model, loss).operands} == {None}


def test_a_model_without_quantized_layers_has_no_rows() -> None:
    model = nn.Linear(4, 4)
    assert gemm_errors(model, lambda: model(torch.ones(2, 4)).sum()) == LayerErrors((), ())


@pytest.mark.parametrize("make", [LinearRecipe, lambda: LinearRecipe.uniform(formats.NVFP4)])
def test_every_operand_has_a_row(make: Callable[[], LinearRecipe]) -> None:
    _, _, errors = one_layer_errors(make())
    assert {(row.gemm, row.operand) for row in errors.operands} == {
        (place.gemm, place.label) for place in PLACES
    }


def test_tokens_that_do_not_fill_a_hadamard_block() -> None:
    recipe = recipes.get("nvfp4").linear
    model = Linear(24, 40, recipe=recipe, ragged="pad")
    x = torch.randn(17, 24, requires_grad=True)
    errors = gemm_errors(model, lambda: model(x).square().mean())
    assert [row.operand for row in errors.operands] == [place.label for place in PLACES]
    for row in (*errors.operands, *errors.products):
        assert row.sqnr_db is not None
        assert row.sqnr_db > 10, row
