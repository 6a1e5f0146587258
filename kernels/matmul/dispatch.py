"""The product of two operands: in float32, or in bf16 where that is faster and exact."""

from __future__ import annotations

import torch
from torch import Tensor

from fp4lab.kernels.matmul import reference

#: multiplications below which torch's bf16 product on a CPU is not oneDNN's, which applies alpha to
#: its float32 sums
LEAST = 1 << 18


def has_bf16(device: torch.device) -> bool:
    """Whether bf16 products are faster than float32 ones on a device."""
    if device.type != "cpu":
        return device.type == "cuda"
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def scaled_matmul(a_MK: Tensor, b_NK: Tensor, alpha: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`a @ b^T * alpha` with float32 sums, rounded once to `dtype`.

    Operands in bf16 are multiplied as such where the hardware does; others in float32 (float64
    where both are).
    """
    both_bf16 = a_MK.dtype == b_NK.dtype == torch.bfloat16
    if both_bf16 and dtype == torch.bfloat16 and has_bf16(a_MK.device):
        if a_MK.device.type == "cuda":
            product = torch.mm(a_MK, b_NK.t(), out_dtype=torch.float32)
            return (product if alpha is None else product.mul_(alpha)).to(dtype)
        if alpha is None:
            return a_MK @ b_NK.t()
        if alpha.numel() == 1 and a_MK.numel() * b_NK.shape[0] >= LEAST:
            out = a_MK.new_empty((a_MK.shape[0], b_NK.shape[0]))
            return torch.addmm(out, a_MK, b_NK.t(), beta=0, alpha=alpha.item())
    return reference.scaled_matmul(a_MK, b_NK, alpha, dtype)


def grouped_matmul(
    a_TK: Tensor, b_ENK: Tensor, alpha_E: Tensor | None, row_counts: Tensor, dtype: torch.dtype
) -> Tensor:
    """`reference.grouped_matmul`, each group by `scaled_matmul` into its rows of the result."""
    y_TN = a_TK.new_empty((a_TK.shape[0], b_ENK.shape[1]), dtype=dtype)
    start = 0
    for e, count in enumerate(row_counts.tolist()):
        if count:
            rows = slice(start, start + count)
            alpha = None if alpha_E is None else alpha_E[e]
            y_TN[rows] = scaled_matmul(a_TK[rows], b_ENK[e], alpha, dtype)
        start += count
    return y_TN
