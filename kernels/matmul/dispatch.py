"""Products, and who computes them: in float32, in bf16 where that is exact, or of stored codes."""

from __future__ import annotations

import torch
from torch import Tensor

from fp4lab.kernels import backends
from fp4lab.kernels.matmul import reference
from fp4lab.kernels.quantize import stored
from fp4lab.kernels.quantize.stored import Stored
from fp4lab.kernels.schema import DTYPES

#: multiplications below which torch's bf16 product on a CPU is not oneDNN's, which applies alpha to
#: its float32 sums
LEAST = 1 << 18


#: asked once, here: torch.compile cannot trace the question
_CPU_HAS_BF16 = bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def has_bf16(device: torch.device) -> bool:
    """Whether bf16 products are faster than float32 ones on a device."""
    return device.type == "cuda" or (device.type == "cpu" and _CPU_HAS_BF16)


def scaled_matmul(a_MK: Tensor, b_NK: Tensor, alpha: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`a @ b^T * alpha` with float32 sums, rounded once to `dtype`.

    Operands in bf16 are multiplied as such where the hardware does; others in float32 (float64
    where both are).
    """
    both_bf16 = a_MK.dtype == b_NK.dtype == torch.bfloat16
    if both_bf16 and a_MK.device.type == "cuda":
        # to float32, for a bf16 result may be put together from parts of K that are bf16 too
        product = torch.mm(a_MK, b_NK.t(), out_dtype=torch.float32)
        return (product if alpha is None else product.mul_(alpha)).to(dtype)
    if both_bf16 and dtype == torch.bfloat16 and has_bf16(a_MK.device):
        if alpha is None:
            return a_MK @ b_NK.t()
        if alpha.numel() == 1 and a_MK.numel() * b_NK.shape[0] >= LEAST:
            out = a_MK.new_empty((a_MK.shape[0], b_NK.shape[0]))
            return out.addmm_(a_MK, b_NK.t(), beta=0, alpha=alpha.item())
    return reference.scaled_matmul(a_MK, b_NK, alpha, dtype)


def grouped_matmul(
    a_TK: Tensor, b_ENK: Tensor, alpha_E: Tensor | None, row_counts: Tensor, dtype: torch.dtype
) -> Tensor:
    """`reference.grouped_matmul`, each group by `scaled_matmul`.

    On a GPU one launch serves all groups, and their sizes are read there; elsewhere sizes that are
    not those of the rows are an InputError.
    """
    both_bf16 = a_TK.dtype == b_ENK.dtype == torch.bfloat16
    some = a_TK.numel() and b_ENK.numel()
    if both_bf16 and some and multiplies_by_triton(a_TK.device):
        from fp4lab.kernels.matmul import triton, triton_grouped

        empty = a_TK.new_zeros(0, dtype=torch.float32)
        alpha_E = empty if alpha_E is None else alpha_E.flatten()
        a = triton.Factor(a_TK, None, empty, None, a_TK.shape[1])
        b = triton.Factor(b_ENK, None, alpha_E, None, a_TK.shape[1])
        return triton_grouped.grouped_matmul(a, b, row_counts.cumsum(0), dtype)
    counts = row_counts.tolist()
    reference.check_row_counts(counts, a_TK.shape[0], b_ENK.shape[0])
    return reference.grouped_matmul(a_TK, b_ENK, alpha_E, counts, dtype, scaled_matmul)


def stored_matmul(a_MK: Stored, b_NK: Stored, num_columns: int, dtype: torch.dtype) -> Tensor:
    """`a @ b^T * alpha` of codes whose operands fit bf16, rounded once to `dtype`.

    On a GPU, by its block-scaled matrix instructions (through torch, or else a kernel) where it has
    them for both formats, and otherwise by a kernel that decodes to bf16 on the way; elsewhere as
    `scaled_matmul` of bf16 operands.
    """
    if multiplies_by_triton(a_MK.codes.device):
        product = _by_triton(a_MK, b_NK, num_columns, dtype)
        if product is not None:
            return product
    a, a_epilogue = stored.operand(a_MK, num_columns, torch.bfloat16)
    b, b_epilogue = stored.operand(b_NK, num_columns, torch.bfloat16)
    alpha = reference.epilogue_alpha(a_epilogue, b_epilogue, a_MK.format, b_NK.format)
    return scaled_matmul(a, b, alpha, dtype)


def multiplies_by_triton(device: torch.device) -> bool:
    """Whether Triton's products are to be had: its interpreter multiplies bf16's bits."""
    return device.type == "cuda" and backends.chosen(device) == "triton"


def _by_triton(a_MK: Stored, b_NK: Stored, num_columns: int, dtype: torch.dtype) -> Tensor | None:
    """The first of three ways that takes both; None where none does."""
    from fp4lab.kernels.matmul import triton, triton_scaled
    from fp4lab.kernels.quantize.triton_stored import epilogue

    if dtype not in DTYPES:
        return None
    a, b = (
        triton.Factor(q.codes, q.scales, epilogue(q), q.format, num_columns) for q in (a_MK, b_NK)
    )
    if not (triton.takes(a) and triton.takes(b)):
        return None
    device = a_MK.codes.device
    if triton_scaled.library_takes(a, b, device):
        return triton_scaled.library_matmul(a, b).to(dtype)
    if triton_scaled.takes(a, b, device):
        return triton_scaled.matmul(a, b, dtype)
    return triton.matmul(a, b, dtype)
