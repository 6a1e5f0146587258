"""GEMM of two quantized operands: one float32 matmul, then one multiplication by alpha.

    y_MN = (a_MK @ b_NK^T) * alpha,   alpha = (epilogue_a * epilogue_b) / (C_a M_a C_b M_b)

The operands are elements times block scales (`fp4lab.kernels.quantize.reference.operand`), whose
products are exact in float32, and alpha holds the amax of both tensors: this is bit-equal to
Transformer Engine's reference GEMM, and folding the tensor scales into the operands would not be.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp4lab.formats import BlockFormat


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
    factor = 1.0
    for fmt in (a_format, b_format):
        if fmt is not None:
            factor *= fmt.amax_factor
    # a tensor, for CUDA multiplies by the reciprocal of a number
    return alpha / alpha.new_full((), factor) if factor != 1.0 else alpha


def scaled_matmul(a_MK: Tensor, b_NK: Tensor, alpha: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`a @ b^T * alpha` with float32 sums, rounded once to `dtype`.

    Two float64 operands, which no quantizer gives, are multiplied in float64.
    """
    wide = torch.float64 if a_MK.dtype == b_NK.dtype == torch.float64 else torch.float32
    product = a_MK.to(wide) @ b_NK.to(wide).t()
    return (product if alpha is None else product.mul_(alpha)).to(dtype)
