"""The three matrix products of a linear layer, each operand as a recipe says.

    fprop   Y_MN  = X_MK  W_NK^T
    dgrad   dX_MK = dY_MN W_NK         contracts N
    wgrad   dW_NK = dY_MN^T X_MK       contracts M, the tokens

Every operand is quantized along the axis that its product contracts, from the tensor itself or
from the copy that fprop multiplied. Products run in float32 (in float64 where both operands are
float64 that is not quantized) with the second-level scales in the epilogue
(`fp4lab.kernels.matmul.reference`). Nothing here has state: rounding noise comes in as an
int64 `[4]` tensor, of which each of the six operands has a stream of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fp4lab.formats import BlockFormat, Hadamard
from fp4lab.functional import check_ragged
from fp4lab.kernels import ops
from fp4lab.kernels.matmul.reference import epilogue_alpha
from fp4lab.recipes import LinearRecipe, Operand, Source
from fp4lab.recipes.places import (
    DGRAD_DY,
    DGRAD_W,
    FPROP_W,
    FPROP_X,
    WGRAD_DY,
    WGRAD_X,
    Place,
)


class Prepared(NamedTuple):
    """An operand ready for a product: values, what is left for the epilogue, and the format."""

    values: Tensor
    epilogue: Tensor
    format: BlockFormat | None


class How(NamedTuple):
    """What the operands of one layer share: noise, ragged policy, and the layer's name."""

    noise: Tensor
    ragged: str = "error"
    layer: str = "linear"


def prepare(
    x: Tensor, operand: Operand, how: How, *, stream: int, transposed: bool = False
) -> Prepared:
    """Quantize a matrix (or its transpose) for a product.

    Args:
        x: `[rows, columns]`, any float dtype.
        operand: the recipe's word for it; its source has been resolved by the caller.
        how: noise, ragged policy, name.
        stream: noise stream.
        transposed: contract x's rows instead of its columns.
    """
    transform, dim = operand.hadamard, 0 if transposed else 1
    x = padded_to_hadamard(x, transform, dim=dim, ragged=how.ragged)
    if operand.format is None:
        if transform is not None:
            x = ops.hadamard(x, transform.size, transform.vector, dim)
        values = widened(x)
        return Prepared(values.t() if transposed else values, values.new_zeros(0), None)
    shape = (x.shape[1], x.shape[0]) if transposed else (x.shape[0], x.shape[1])
    check_ragged(shape, operand.format, transform, how.ragged, f"layer {how.layer!r}")
    values, epilogue = ops.operand(
        x,
        operand.format.ints,
        transposed,
        transform.size if transform is not None else 1,
        transform.vector if transform is not None else [],
        operand.rounding.noise_bits,
        how.noise,
        stream,
        None,
        0,
        None,
    )
    return Prepared(values, epilogue, operand.format)


def widened(x: Tensor) -> Tensor:
    """What is not quantized enters a product in float32, or as float64."""
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def hadamard_padding(extent: int, transform: Hadamard | None, ragged: str) -> int:
    """Zeros that a contracted axis lacks to whole Hadamard blocks; 0 where none are to be added.

    Both operands get them before the transform, so the product stays as it is.
    """
    return -extent % transform.size if transform is not None and ragged == "pad" else 0


def padded_to_hadamard(x: Tensor, transform: Hadamard | None, *, dim: int, ragged: str) -> Tensor:
    """A matrix with the zeros that its contracted dimension lacks."""
    zeros = hadamard_padding(x.shape[dim], transform, ragged)
    if zeros == 0:
        return x
    return torch.nn.functional.pad(x, (0, zeros) if dim == 1 else (0, 0, 0, zeros))


def product(a: Prepared, b: Prepared) -> Tensor:
    """`a @ b^T`."""
    alpha = epilogue_alpha(a.epilogue, b.epilogue, a.format, b.format)
    result: Tensor = ops.matmul(a.values, b.values, alpha, False)
    return result


def forward_copy(x: Tensor, operand: Operand, how: How, *, stream: int) -> Tensor:
    """The dequantized copy of X or W that fprop multiplied."""
    if operand.format is None:
        return widened(x)
    copy: Tensor = ops.fake_quantize(
        x.to(torch.float32),
        operand.format.ints,
        False,
        1,
        [],
        operand.rounding.noise_bits,
        how.noise,
        stream,
        None,
        0,
        None,
    )
    return copy


def operand_at(stored: Tensor, place: Place, recipe: LinearRecipe, how: How) -> Prepared:
    """X, W or dY as it is stored, made into an operand: from itself, or from fprop's copy."""
    here = recipe.operand(place)
    if here.source == Source.FORWARD:
        first = place.forward
        assert first is not None
        forward = recipe.operand(first)
        if here.format is None and here.hadamard is None:
            copy = prepare(stored, forward, how, stream=first.stream)
            if copy.epilogue.dim() < 2:
                return Prepared(copy.values.t(), copy.epilogue, copy.format)
        # scales per row run along the axis that is contracted now: they go into the values
        stored = forward_copy(stored, forward, how, stream=first.stream)
    return prepare(stored, here, how, stream=place.stream, transposed=place.transposed)


def fprop(x_MK: Tensor, w_NK: Tensor, recipe: LinearRecipe, how: How) -> Tensor:
    """Y_MN."""
    return product(operand_at(x_MK, FPROP_X, recipe, how), operand_at(w_NK, FPROP_W, recipe, how))


def dgrad(dy_MN: Tensor, w_NK: Tensor, recipe: LinearRecipe, how: How) -> Tensor:
    """dX_MK."""
    return product(operand_at(dy_MN, DGRAD_DY, recipe, how), operand_at(w_NK, DGRAD_W, recipe, how))


def wgrad(dy_MN: Tensor, x_MK: Tensor, recipe: LinearRecipe, how: How) -> Tensor:
    """dW_NK."""
    return product(operand_at(dy_MN, WGRAD_DY, recipe, how), operand_at(x_MK, WGRAD_X, recipe, how))
