"""A few rows of activations times weights that stay packed, and who computes it."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from fp4lab.formats import BlockFormat
from fp4lab.kernels import backends
from fp4lab.kernels.matmul import reference
from fp4lab.kernels.native import structures as c
from fp4lab.kernels.quantize import stored

#: rows of x up to which reading packed weights beats a matrix product with decoded ones
FEW = 16


class _Product(ctypes.Structure):
    """`product_t` of cpu.c."""

    _fields_ = (
        ("weights", stored.CStored),
        ("batch", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("alpha", ctypes.c_void_p),
        ("alpha_per_row", ctypes.c_int32),
        ("int8", ctypes.c_int32),
        ("y", ctypes.c_void_p),
    )


def packed_matmul(
    x_BK: Tensor,
    codes: Tensor,
    scales: Tensor,
    amax: Tensor,
    fmt: BlockFormat,
    int8: bool,
) -> Tensor:
    """`x @ w^T * alpha` as float32 `[B, N]`; the letters are those of `cpu.c`."""
    columns = x_BK.shape[1]
    few = 0 < x_BK.shape[0] <= FEW and c.plain(x_BK) and x_BK.dtype in c.DTYPES
    if few and not fmt.whole_rows and stored.by_c(codes, scales, amax, fmt):
        return _by_native(x_BK.contiguous(), codes, scales, amax, fmt, int8)
    w_NK, epilogue = stored.operand(codes, scales, amax, fmt, columns, torch.float32)
    empty = epilogue.new_zeros(0)
    alpha = reference.epilogue_alpha(empty, epilogue, None, fmt)
    return reference.packed_matmul(x_BK, w_NK, w_NK.new_ones(1) if alpha is None else alpha, int8)


def _by_native(
    x_BK: Tensor, codes: Tensor, scales: Tensor, amax: Tensor, fmt: BlockFormat, int8: bool
) -> Tensor:
    batch, columns = x_BK.shape
    rows = codes.shape[0]
    weights, kept = stored.asked_of_c(codes, scales, None, fmt, columns, x_BK.dtype)
    alpha = reference.epilogue_alpha(amax.new_zeros(0), amax, None, fmt)
    alpha = amax.new_ones(1) if alpha is None else alpha.contiguous()
    y_BN = c.new_result((batch, rows), torch.float32)
    product: Any = _Product(
        weights=weights,
        batch=batch,
        x=x_BK.data_ptr(),
        alpha=alpha.data_ptr(),
        alpha_per_row=alpha.numel() > 1,
        int8=int8,
        y=y_BN.data_ptr(),
    )
    failed = backends.native("packed_product")(ctypes.byref(product))
    del kept
    if failed:
        raise MemoryError(f"no memory to multiply by weights of shape {(rows, columns)}")
    return y_BN
