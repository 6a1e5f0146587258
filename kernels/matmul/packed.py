"""A few rows of activations times weights that stay packed, and who computes it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fp4lab.formats import BlockFormat
from fp4lab.kernels import backends
from fp4lab.kernels.matmul import reference
from fp4lab.kernels.native import structures as c
from fp4lab.kernels.native.memory import new_result
from fp4lab.kernels.quantize import stored
from fp4lab.kernels.quantize.reference import epilogue as epilogue_of
from fp4lab.kernels.quantize.stored import Stored
from fp4lab.kernels.schema import DTYPES

#: rows of x up to which reading packed weights beats a matrix product with decoded ones
FEW = 16


class _Product(ctypes.Structure):
    """`product_t` of product.h."""

    _fields_ = (
        ("weights", stored.CStored),
        ("batch", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("alpha", ctypes.c_void_p),
        ("alpha_per_row", ctypes.c_int32),
        ("int8", ctypes.c_int32),
        ("y", ctypes.c_void_p),
    )


def packed_matmul(x_BK: Tensor, weight: Stored, int8: bool) -> Tensor:
    """`x @ w^T * alpha` as float32 `[B, N]`; the letters are those of `cpu.c`."""
    few = 0 < x_BK.shape[0] <= FEW and c.plain(x_BK) and x_BK.dtype in DTYPES
    if few and not weight.format.whole_rows and stored.c_takes(weight):
        return _by_c(x_BK.contiguous(), weight, int8)
    w_NK, epilogue = stored.operand(weight, x_BK.shape[1], torch.float32)
    return reference.packed_matmul(x_BK, w_NK, _alpha(epilogue, weight.format), int8)


def _alpha(epilogue: Tensor, fmt: BlockFormat) -> Tensor | None:
    return reference.epilogue_alpha(epilogue.new_zeros(0), epilogue, None, fmt)


def _by_c(x_BK: Tensor, weight: Stored, int8: bool) -> Tensor:
    batch, columns = x_BK.shape
    rows = weight.codes.shape[0]
    weights = stored.as_c(weight, columns, x_BK.dtype, outer=False)
    epilogue = epilogue_of(weight.scales, weight.tensor_scale, weight.format, rows)
    alpha = _alpha(epilogue, weight.format)
    alpha = epilogue.new_ones(1) if alpha is None else alpha.contiguous()
    y_BN = new_result((batch, rows), torch.float32)
    product = _Product(
        weights=weights,
        batch=batch,
        x=x_BK.data_ptr(),
        alpha=alpha.data_ptr(),
        alpha_per_row=alpha.numel() > 1,
        int8=int8,
        y=y_BN.data_ptr(),
    )
    if backends.native("packed_product")(ctypes.byref(product)):
        raise MemoryError(f"no memory to multiply by weights of shape {(rows, columns)}")
    return y_BN
