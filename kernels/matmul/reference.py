"""GEMM of two quantized operands: one float32 matmul, then one multiplication by alpha.

    y_MN = (a_MK @ b_NK^T) * alpha,   alpha = (epilogue_a * epilogue_b) / (C_a M_a C_b M_b)

The operands are elements times block scales (`fp4lab.kernels.quantize.reference.operand`), whose
products are exact in float32, and alpha holds the amax of both tensors: this is bit-equal to
Transformer Engine's reference GEMM, and folding the tensor scales into the operands would not be.
A tensor that stores its decode scale D or its encode scale S has the epilogue D, or 1 / S, and 1 in
place of C M.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat
from fp4lab.kernels.minifloat.reference import FLOAT_MAX


def alpha_divisor(*formats: BlockFormat | None) -> float:
    """`C_a M_a C_b M_b` (1 where no amax is stored): what divides the product of the epilogues."""
    factor = 1.0
    for fmt in formats:
        if fmt is not None:
            numerator, denominator = fmt.epilogue_ratio
            factor *= numerator / denominator
    return factor


def epilogue_alpha(
    epilogue_a: Tensor,
    epilogue_b: Tensor,
    a_format: BlockFormat | None,
    b_format: BlockFormat | None,
) -> Tensor | None:
    """The factor of the product: `[1]`, `[M, 1]`, `[1, N]`, `[M, N]`, or None where it is 1.

    An operand in high precision has no format and an empty epilogue.
    """
    if epilogue_b.dim() == 2:
        epilogue_b = epilogue_b.t()
    if epilogue_a.numel() == 0 and epilogue_b.numel() == 0:
        return None
    if epilogue_a.numel() == 0 or epilogue_b.numel() == 0:
        alpha = epilogue_b if epilogue_a.numel() == 0 else epilogue_a
    else:
        alpha = epilogue_a * epilogue_b
    factor = alpha_divisor(a_format, b_format)
    # a tensor, for CUDA multiplies by the reciprocal of a number
    return alpha / alpha.new_full((), factor) if factor != 1.0 else alpha


def scaled_matmul(a_MK: Tensor, b_NK: Tensor, alpha: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`a @ b^T * alpha` with float32 sums, rounded once to `dtype`.

    Two float64 operands, which no quantizer gives, are multiplied in float64.
    """
    wide = torch.float64 if a_MK.dtype == b_NK.dtype == torch.float64 else torch.float32
    product = a_MK.to(wide) @ b_NK.to(wide).t()
    return (product if alpha is None else product.mul_(alpha)).to(dtype)


def check_row_counts(counts: list[int], num_rows: int, num_matrices: int) -> None:
    """InputError unless there is a count of rows for each matrix, and they are all the rows."""
    if min(counts, default=0) < 0 or sum(counts) != num_rows or len(counts) != num_matrices:
        raise InputError(
            f"row_counts={counts} for {num_rows} rows and {num_matrices} matrices; give one count "
            "for each matrix, which together are the rows"
        )


Product: TypeAlias = Callable[[Tensor, Tensor, Tensor | None, torch.dtype], Tensor]


def grouped_matmul(
    a_TK: Tensor,
    b_ENK: Tensor,
    alpha_E: Tensor | None,
    row_counts: list[int],
    dtype: torch.dtype,
    product: Product = scaled_matmul,
) -> Tensor:
    """Rows of a in consecutive groups, each times its own matrix: `y_e = a_e @ b_e^T * alpha_e`."""
    y_TN = a_TK.new_empty((a_TK.shape[0], b_ENK.shape[1]), dtype=dtype)
    start = 0
    for e, count in enumerate(row_counts):
        rows = slice(start, start + count)
        if count:
            alpha = None if alpha_E is None else alpha_E[e]
            y_TN[rows] = product(a_TK[rows], b_ENK[e], alpha, dtype)
        start += count
    return y_TN


#: activations that share an int8 step; ACTIVATION_BLOCK of product.h
ACTIVATION_BLOCK = 16


def int8_activations(x_BK: Tensor) -> Tensor:
    """What int8 activations stand for: `round(x 127 / amax) amax / 127` for every block of columns.

    In float32, halves to even; a block of zeros stays zero, an incomplete block is one of its own.
    A NaN or an infinity makes its block NaN.
    """
    columns, block = x_BK.shape[1], ACTIVATION_BLOCK
    padded = torch.nn.functional.pad(x_BK.to(torch.float32), (0, -columns % block))
    blocks = padded.view(x_BK.shape[0], padded.shape[1] // block, block)
    step = blocks.abs().amax(dim=2, keepdim=True) / torch.full((), 127.0, device=x_BK.device)
    inverse = torch.where(step > 0, step.reciprocal().clamp(max=FLOAT_MAX), 0.0)
    codes = (blocks * inverse).clamp(-127.0, 127.0).round()
    return (codes * step).view(padded.shape)[:, :columns]


def packed_matmul(x_BK: Tensor, w_NK: Tensor, alpha: Tensor | None, int8: bool) -> Tensor:
    """`x @ w^T * alpha` in float32: activations as they are, or as int8."""
    x_BK = int8_activations(x_BK) if int8 else x_BK.to(torch.float32)
    return scaled_matmul(x_BK, w_NK, alpha, torch.float32)
