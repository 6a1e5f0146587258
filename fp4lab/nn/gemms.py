"""The three matrix products of a linear layer, each operand as a recipe says.

    fprop   Y_MN  = X_MK  W_NK^T
    dgrad   dX_MK = dY_MN W_NK         contracts N
    wgrad   dW_NK = dY_MN^T X_MK       contracts M, the tokens

Every operand is quantized along the axis that its product contracts, from the tensor itself or
from the copy that fprop multiplied. Sums are float32 (float64 where both operands are float64 that
is not quantized), with the second-level scales in the epilogue (`fp4lab.kernels.matmul.reference`).
Where the result is bf16 and both operands fit it, they are multiplied in bf16, which is exact and
faster on hardware that has it; float32 sums, and one rounding, there too. Nothing here has state:
rounding noise comes in as an int64 `[4]` tensor, of which each of the six operands has a stream of
its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fp4lab import formats
from fp4lab.formats import WHOLE, BlockFormat, Hadamard, Level
from fp4lab.functional import check_ragged
from fp4lab.kernels import ops
from fp4lab.kernels.matmul.dispatch import has_bf16
from fp4lab.kernels.matmul.reference import epilogue_alpha
from fp4lab.kernels.schema import Quantizer
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

DGRAD, WGRAD = (DGRAD_DY, DGRAD_W), (WGRAD_DY, WGRAD_X)
#: what leaves bf16 numbers as they are
CAST_TO_BF16 = Operand(format=formats.BF16)


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


def operand_dtype(
    recipe: LinearRecipe, places: tuple[Place, Place], result: torch.dtype, device: torch.device
) -> torch.dtype:
    """What the operands of a product are held in: bf16 where nothing is lost by it, else float32.

    An operand that is not quantized fits where it comes in bf16, as the result goes out.
    """
    fits = all(_fits_bf16(recipe, place) for place in places)
    narrow = result == torch.bfloat16 and fits and has_bf16(device)
    return torch.bfloat16 if narrow else torch.float32


def _fits_bf16(recipe: LinearRecipe, place: Place) -> bool:
    fmt = _format_at(recipe, place)
    return fmt is None or _is_one_number_in_bf16(fmt)


def _format_at(recipe: LinearRecipe, place: Place) -> BlockFormat | None:
    """Of the numbers that are multiplied: that of fprop's copy, where it is taken as it is."""
    operand = recipe.operand(place)
    if operand.format is None and operand.source == Source.FORWARD:
        assert place.forward is not None
        return recipe.operand(place.forward).format
    return operand.format


def _is_there(x: Tensor, operand: Operand, dtype: torch.dtype) -> bool:
    """Whether a tensor is its own operand: bf16 that is only cast to bf16."""
    return operand == CAST_TO_BF16 and x.dtype == dtype == torch.bfloat16


def _is_one_number_in_bf16(fmt: BlockFormat) -> bool:
    """Whether operands fit bf16 and what is left for the epilogue is no more than one number."""
    return fmt.operand_fits_bf16 and fmt.level != Level.ROW and fmt.block != (1, WHOLE)


def prepare(
    x: Tensor, operand: Operand, how: How, place: Place, dtype: torch.dtype = torch.float32
) -> Prepared:
    """Quantize a matrix, or its transpose, for a place in a product.

    Args:
        x: `[rows, columns]` as it is stored, any float dtype.
        operand: the recipe's word for it; its source has been resolved by the caller.
        how: noise, ragged policy, name.
        place: what is contracted, and the noise stream.
        dtype: float32, or bf16 where `operand_dtype` allows it.
    """
    transform, turned = operand.hadamard, _turned(place, dtype)
    x = padded_to_hadamard(x, transform, dim=place.dim, ragged=how.ragged)
    if operand.format is None:
        if transform is not None:
            x = ops.hadamard(x, transform.definition, place.dim)
        values = x if x.dtype == dtype else widened(x)
        return Prepared(values.t() if place.transposed else values, values.new_zeros(0), None)
    if _is_there(x, operand, dtype) and not turned:
        values = x.t() if place.transposed else x
        return Prepared(values, x.new_zeros(0, dtype=torch.float32), None)
    _check(x, operand, how, place)
    quantizer = _quantizer(operand, place)
    values, epilogue = ops.operand(x, quantizer, dtype, turned, how.noise, place.stream)
    return Prepared(values, epilogue, operand.format)


def _quantizer(operand: Operand, place: Place) -> str:
    assert operand.format is not None
    noise_bits = operand.rounding.noise_bits
    return Quantizer(operand.format, place.transposed, operand.hadamard, noise_bits).text


def _check(x: Tensor, operand: Operand, how: How, place: Place) -> None:
    assert operand.format is not None
    shape = (x.shape[1], x.shape[0]) if place.transposed else (x.shape[0], x.shape[1])
    what = f"layer {how.layer!r}"
    check_ragged(shape, operand.format, operand.hadamard, how.ragged, what, place.sides)


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


def product(a: Prepared, b: Prepared, result: torch.dtype = torch.float32) -> Tensor:
    """`a @ b^T`, rounded once to the dtype of the result."""
    alpha = epilogue_alpha(a.epilogue, b.epilogue, a.format, b.format)
    both_wide = a.values.dtype == b.values.dtype == torch.float64
    dtype = torch.float64 if both_wide else result
    made: Tensor = ops.matmul(a.values, b.values, alpha, dtype)
    return made.to(result)


def forward_copy(x: Tensor, operand: Operand, how: How, place: Place) -> Tensor:
    """The dequantized copy of X or W that fprop multiplied; no transform stands there."""
    if operand.format is None:
        return x
    quantizer = _quantizer(operand, place)
    copy: Tensor = ops.fake_quantize(x.to(torch.float32), quantizer, how.noise, place.stream)
    return copy


def operand_at(
    stored: Tensor, place: Place, recipe: LinearRecipe, how: How, dtype: torch.dtype = torch.float32
) -> Prepared:
    """X, W or dY as it is stored, made into an operand: from itself, or from fprop's copy."""
    here = recipe.operand(place)
    if here.source == Source.FORWARD:
        first = place.forward
        assert first is not None
        forward = recipe.operand(first)
        if here.format is None and here.hadamard is None:
            copy = prepare(stored, forward, how, first, dtype)
            if copy.epilogue.dim() < 2:
                return Prepared(copy.values.t(), copy.epilogue, copy.format)
        # scales per row run along the axis that is contracted now: they go into the values
        stored = forward_copy(stored, forward, how, first)
    return prepare(stored, here, how, place, dtype)


def _turned(place: Place, dtype: torch.dtype) -> bool:
    """bf16 products are fastest with `a` row-major; `b` is read in either order."""
    return place.transposed and place.side == "a" and dtype == torch.bfloat16


def _multiplied(
    a: tuple[Place, Tensor],
    b: tuple[Place, Tensor],
    recipe: LinearRecipe,
    how: How,
    result: torch.dtype,
    made: Prepared | None = None,
) -> Tensor:
    """The product of two places with what is stored there; `made`: the first's operand, if made."""
    dtype = operand_dtype(recipe, (a[0], b[0]), result, a[1].device)
    left = operand_at(a[1], a[0], recipe, how, dtype) if made is None else made
    return product(left, operand_at(b[1], b[0], recipe, how, dtype), result)


def fprop(
    x_MK: Tensor,
    w_NK: Tensor,
    recipe: LinearRecipe,
    how: How,
    result: torch.dtype = torch.float32,
) -> Tensor:
    """Y_MN."""
    return _multiplied((FPROP_X, x_MK), (FPROP_W, w_NK), recipe, how, result)


def dgrad(
    dy_MN: Tensor,
    w_NK: Tensor,
    recipe: LinearRecipe,
    how: How,
    result: torch.dtype = torch.float32,
    *,
    a: Prepared | None = None,
) -> Tensor:
    """dX_MK; `a` is dY's operand where it has been made."""
    return _multiplied((DGRAD_DY, dy_MN), (DGRAD_W, w_NK), recipe, how, result, a)


def wgrad(
    dy_MN: Tensor,
    x_MK: Tensor,
    recipe: LinearRecipe,
    how: How,
    result: torch.dtype = torch.float32,
    *,
    a: Prepared | None = None,
) -> Tensor:
    """dW_NK; `a` is dY^T's operand where it has been made."""
    return _multiplied((WGRAD_DY, dy_MN), (WGRAD_X, x_MK), recipe, how, result, a)


def backward(
    dy_MN: Tensor, x_MK: Tensor, w_NK: Tensor, recipe: LinearRecipe, how: How
) -> tuple[Tensor, Tensor]:
    """dX and dW in the dtypes of X and W, with both operands of dY from one read of it."""
    narrow = operand_dtype(recipe, DGRAD, x_MK.dtype, dy_MN.device)
    alike = narrow == operand_dtype(recipe, WGRAD, w_NK.dtype, dy_MN.device)
    a, a_t = _both_of_dy(dy_MN, recipe, how, narrow) if alike else (None, None)
    dx_MK = dgrad(dy_MN, w_NK, recipe, how, x_MK.dtype, a=a)
    return dx_MK, wgrad(dy_MN, x_MK, recipe, how, w_NK.dtype, a=a_t)


def _both_of_dy(
    dy_MN: Tensor, recipe: LinearRecipe, how: How, dtype: torch.dtype
) -> tuple[Prepared, Prepared] | tuple[None, None]:
    """The operands of dY and dY^T; none where one is dY itself or must be padded first."""
    rows, columns = recipe.operand(DGRAD_DY), recipe.operand(WGRAD_DY)
    padding = [
        hadamard_padding(dy_MN.shape[place.dim], recipe.operand(place).hadamard, how.ragged)
        for place in (DGRAD_DY, WGRAD_DY)
    ]
    if rows.format is None or columns.format is None or any(padding):
        return None, None
    if _is_there(dy_MN, rows, dtype):
        return None, None
    _check(dy_MN, rows, how, DGRAD_DY)
    _check(dy_MN, columns, how, WGRAD_DY)
    values, epilogue, values_t, epilogue_t = ops.operand_pair(
        dy_MN,
        _quantizer(rows, DGRAD_DY),
        _quantizer(columns, WGRAD_DY),
        dtype,
        _turned(WGRAD_DY, dtype),
        how.noise,
        DGRAD_DY.stream,
        WGRAD_DY.stream,
    )
    return Prepared(values, epilogue, rows.format), Prepared(values_t, epilogue_t, columns.format)
