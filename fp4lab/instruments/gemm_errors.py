"""Quantization errors of every GEMM of a model, measured while it runs.

For each `fp4lab.nn.Linear` the input X, the weight W and the output's gradient dY of one forward
and backward pass are taken as they come, and

    each operand   is compared with itself before quantization, in the space where it is quantized
                   (after its Hadamard transform, which is orthogonal and keeps every figure but
                   underflow and saturation),
    each product   Y, dX, dW as the layer computes it is compared with the product of the same
                   tensors in float64.

So the figures say what one GEMM does to its own inputs; errors that X and dY bring along from other
layers are not in them. A layer that is called several times is measured at its first call.

Cost: three float64 products a layer, and X of every layer is kept until the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from fp4lab.formats import BlockFormat
from fp4lab.functional import Error, compare, error, fake_quantize
from fp4lab.instruments.error_rows import LayerErrors, OperandError, ProductError
from fp4lab.kernels.hadamard.reference import hadamard
from fp4lab.nn import Linear, gemms
from fp4lab.nn.gemms import How
from fp4lab.recipes import Operand, Source
from fp4lab.recipes.places import (
    DGRAD_DY,
    DGRAD_W,
    FPROP_W,
    FPROP_X,
    GEMMS,
    WGRAD_DY,
    WGRAD_X,
    Place,
)

Rows: TypeAlias = tuple[list[OperandError], list[ProductError]]
#: where a tensor enters, and the tensor as it is stored
Entry: TypeAlias = tuple[Place, Tensor]


def gemm_errors(model: nn.Module, loss: Callable[[], Tensor]) -> LayerErrors:
    """Measure one pass: `loss()` runs the model on a batch and returns a scalar.

    Parameters, their gradients and the rounding noise are left as they are. A model without
    quantized layers gives no rows; a layer that no gradient reaches, or whose input needs none,
    gives none for the GEMMs that did not run. A loss that is no scalar, or that no parameter
    reaches, is torch's RuntimeError.

    >>> from fp4lab import recipes
    >>> layer = Linear(64, 32, recipe=recipes.get("nvfp4").linear)
    >>> errors = gemm_errors(layer, lambda: layer(torch.randn(16, 64)).square().sum())
    >>> [(row.gemm, row.operand, row.format) for row in errors.operands][:2]
    [('fprop', 'X', 'nvfp4'), ('fprop', 'W', 'nvfp4_16x16')]
    >>> [row.product for row in errors.products]  # no dX, for the input needs no gradient
    ['Y', 'dW']
    """
    found: dict[tuple[str, str], Rows] = {}
    layers = {name: m for name, m in model.named_modules() if isinstance(m, Linear)}
    handles = [
        layer.register_forward_hook(_watch(name, found), with_kwargs=False)
        for name, layer in layers.items()
    ]
    try:
        with torch.enable_grad():
            value = loss()
        weights = [p for p in model.parameters() if p.requires_grad]
        torch.autograd.grad(value, weights, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    rows = [found[name, gemm] for name in layers for gemm in GEMMS if (name, gemm) in found]
    return LayerErrors(
        operands=tuple(row for operands, _ in rows for row in operands),
        products=tuple(row for _, products in rows for row in products),
    )


def _watch(name: str, found: dict[tuple[str, str], Rows]) -> Callable[..., None]:
    """A forward hook that measures fprop at once, and the other GEMMs when dY arrives."""

    def hook(layer: Linear, inputs: tuple[Any, ...], output: Tensor) -> None:
        if (name, "fprop") in found:
            return
        x, w = inputs[0], layer.weight
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, w = x.to(dtype), w.to(dtype)
        needs_dx = inputs[0].requires_grad
        x_MK, w_NK = x.detach().flatten(0, -2), w.detach()
        layer_gemms = _LayerGemms(name, layer, x_MK, w_NK)
        found[name, "fprop"] = layer_gemms.fprop()

        def arrived(dy: Tensor) -> None:
            dy_MN = dy.detach().flatten(0, -2)
            if needs_dx:
                found[name, "dgrad"] = layer_gemms.dgrad(dy_MN)
            found[name, "wgrad"] = layer_gemms.wgrad(dy_MN)

        if output.requires_grad:
            output.register_hook(arrived)

    return hook


class _LayerGemms:
    """One layer's GEMMs on captured tensors: M tokens, K inputs, N outputs."""

    def __init__(self, name: str, layer: Linear, x_MK: Tensor, w_NK: Tensor) -> None:
        self.name = name
        self.recipe = layer.recipe
        self.how = How(layer.noise.clone(), layer.ragged, layer.layer_name)
        self.x_MK, self.w_NK = x_MK, w_NK

    def fprop(self) -> Rows:
        """X W^T."""
        y_MN = gemms.fprop(self.x_MK, self.w_NK, self.recipe, self.how)
        return self._rows((FPROP_X, self.x_MK), (FPROP_W, self.w_NK), y_MN)

    def dgrad(self, dy_MN: Tensor) -> Rows:
        """dY W."""
        dx_MK = gemms.dgrad(dy_MN, self.w_NK, self.recipe, self.how)
        return self._rows((DGRAD_DY, dy_MN), (DGRAD_W, self.w_NK), dx_MK)

    def wgrad(self, dy_MN: Tensor) -> Rows:
        """dY^T X."""
        dw_NK = gemms.wgrad(dy_MN, self.x_MK, self.recipe, self.how)
        return self._rows((WGRAD_DY, dy_MN), (WGRAD_X, self.x_MK), dw_NK)

    def _rows(self, a: Entry, b: Entry, result: Tensor) -> Rows:
        """Both operands, as they are stored, and their product."""
        operands = []
        for place, stored in (a, b):
            _, figures, fmt = self.operand(place, stored)
            name = fmt.name if fmt else None
            row = OperandError(self.name, place.gemm, place.label, name, **_plain(figures))
            operands.append(row)
        (place_a, stored_a), (place_b, stored_b) = a, b
        exact = torch.tensordot(
            stored_a.to(torch.float64),
            stored_b.to(torch.float64),
            dims=((place_a.dim,), (place_b.dim,)),
        )
        plain, gemm = _plain(compare(result, exact)), place_a.gemm
        shown = {key: plain[key] for key in ("sqnr_db", "relative_mse", "cosine", "gain")}
        return operands, [ProductError(self.name, gemm, GEMMS[gemm], **shown)]

    def operand(self, place: Place, stored: Tensor) -> tuple[Tensor, Error, BlockFormat | None]:
        """X, W or dY as it enters the product, its error, and its format.

        The result has the layout of `stored`, as the rounding noise belongs to its elements.
        """
        operand = self.recipe.operand(place)
        if operand.source == Source.HIGH_PRECISION:
            return self._quantized(operand, stored, place)
        assert place.forward is not None
        copy, figures, fmt = self._quantized(
            self.recipe.operand(place.forward), stored, place.forward
        )
        result, again, new_fmt = self._quantized(operand, copy, place)
        saturation = (again if new_fmt else figures).saturation
        reference = self._transformed(operand, stored, place.dim)
        return result, compare(result, reference, saturation=saturation), new_fmt or fmt

    def _quantized(
        self, operand: Operand, stored: Tensor, place: Place
    ) -> tuple[Tensor, Error, BlockFormat | None]:
        x = self._transformed(operand, stored, place.dim)
        if operand.format is None:
            return x, compare(x, x, saturation=0.0), None
        how: dict[str, Any] = {
            "rounding": operand.rounding,
            "noise": self.how.noise,
            "stream": place.stream,
            "axis": place.dim - 2,
            "ragged": self.how.ragged,
        }
        quantized = fake_quantize(x.to(torch.float32), operand.format, **how)
        return quantized, error(x, operand.format, **how), operand.format

    def _transformed(self, operand: Operand, stored: Tensor, dim: int) -> Tensor:
        transform = operand.hadamard
        if transform is None:
            return stored
        whole = gemms.padded_to_hadamard(stored, transform, dim=dim, ragged=self.how.ragged)
        return hadamard(whole, transform, dim)


def _plain(figures: Error) -> dict[str, Any]:
    """For JSON: what is infinite or undefined becomes None."""
    return {key: v if math.isfinite(v) else None for key, v in figures._asdict().items()}
