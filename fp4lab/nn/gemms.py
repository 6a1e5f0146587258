"""The three matrix products of a linear layer, each operand as a recipe says.

    fprop   Y_MN  = X_MK  W_NK^T
    dgrad   dX_MK = dY_MN W_NK         contracts N
    wgrad   dW_NK = dY_MN^T X_MK       contracts M, the tokens

Every operand is quantized along the axis that its product contracts, from the tensor itself or
from the copy that fprop multiplied. Products run in float32 with the second-level scales in the
epilogue (`fp4lab.kernels.matmul.reference`). Nothing here has state: rounding noise comes in as an
int64 `[4]` tensor, and each of the six operands has a stream number of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fp4lab.formats import BlockFormat
from fp4lab.functional import check_ragged
from fp4lab.kernels import ops
from fp4lab.kernels.matmul.reference import epilogue_alpha
from fp4lab.recipes import LinearRecipe, Operand, Source

#: stream numbers of the rounding noise; part of the definition, never to be reordered
STREAMS = {
    ("fprop", "a"): 0,
    ("fprop", "b"): 1,
    ("dgrad", "a"): 2,
    ("dgrad", "b"): 3,
    ("wgrad", "a"): 4,
    ("wgrad", "b"): 5,
}


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
    transform = operand.hadamard
    if operand.format is None:
        if transform is not None:
            dim = 0 if transposed else 1
            x = ops.hadamard(x, transform.size, transform.vector, dim)
        values = x.to(torch.float32)
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


def product(a: Prepared, b: Prepared) -> Tensor:
    """`a @ b^T` in float32."""
    alpha = epilogue_alpha(a.epilogue, b.epilogue, a.format, b.format)
    result: Tensor = ops.matmul(a.values, b.values, alpha, False)
    return result


def forward_copy(x: Tensor, operand: Operand, how: How, *, stream: int) -> Tensor:
    """The dequantized float32 copy of X or W that fprop multiplied."""
    if operand.format is None:
        return x.to(torch.float32)
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


def fprop(x_MK: Tensor, w_NK: Tensor, recipe: LinearRecipe, how: How) -> Tensor:
    """Y_MN in float32."""
    a = prepare(x_MK, recipe.fprop.a, how, stream=STREAMS["fprop", "a"])
    b = prepare(w_NK, recipe.fprop.b, how, stream=STREAMS["fprop", "b"])
    return product(a, b)


def dgrad(dy_MN: Tensor, w_NK: Tensor, recipe: LinearRecipe, how: How) -> Tensor:
    """dX_MK in float32."""
    a = prepare(dy_MN, recipe.dgrad.a, how, stream=STREAMS["dgrad", "a"])
    b = _backward_operand(w_NK, recipe.dgrad.b, recipe.fprop.b, how, "dgrad", "b")
    return product(a, b)


def wgrad(dy_MN: Tensor, x_MK: Tensor, recipe: LinearRecipe, how: How) -> Tensor:
    """dW_NK in float32."""
    a = prepare(dy_MN, recipe.wgrad.a, how, stream=STREAMS["wgrad", "a"], transposed=True)
    b = _backward_operand(x_MK, recipe.wgrad.b, recipe.fprop.a, how, "wgrad", "a")
    return product(a, b)


def _backward_operand(
    x: Tensor, operand: Operand, forward: Operand, how: How, gemm: str, side: str
) -> Prepared:
    """W^T of dgrad or X^T of wgrad, from the tensor or from fprop's copy of it."""
    if operand.source == Source.FORWARD:
        stream = STREAMS["fprop", side]
        if operand.format is None and operand.hadamard is None:
            copy = prepare(x, forward, how, stream=stream)
            if copy.epilogue.dim() < 2:
                return Prepared(copy.values.t(), copy.epilogue, copy.format)
        # scales per row run along the axis that is contracted now: they go into the values
        x = forward_copy(x, forward, how, stream=stream)
    return prepare(x, operand, how, stream=STREAMS[gemm, "b"], transposed=True)
