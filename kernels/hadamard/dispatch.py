"""The Hadamard transform of a matrix, and who computes it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fp4lab.formats import Hadamard
from fp4lab.kernels import backends
from fp4lab.kernels.hadamard import reference
from fp4lab.kernels.minifloat.reference import positive_nan_
from fp4lab.kernels.native import structures as c
from fp4lab.kernels.native.memory import new_result
from fp4lab.kernels.schema import DTYPES


def hadamard(x: Tensor, transform: Hadamard, dim: int) -> Tensor:
    """As `reference.hadamard`, contiguous, with one NaN."""
    chosen = backends.chosen(x.device)
    if chosen == "triton":
        from fp4lab.kernels.hadamard import triton as by_triton

        if by_triton.takes(x, transform.size):
            return by_triton.hadamard(x, transform, dim)
    if chosen != "native" or not _c_takes(x, transform.size, dim):
        y = reference.hadamard(x, transform, dim)
        return positive_nan_(y.clone(memory_format=torch.contiguous_format))
    x = x.resolve_neg().contiguous()
    # what lies behind dim are the columns, and a transform along dim runs over rows of them
    by_rows = dim % x.dim() != x.dim() - 1
    columns = x.shape[dim:].numel() // x.shape[dim] if by_rows else x.shape[-1]
    y = new_result(x.shape, x.dtype)
    failed = backends.native("hadamard")(
        ctypes.byref(c.hadamard(transform)),
        ctypes.c_void_p(x.data_ptr()),
        DTYPES[x.dtype],
        ctypes.c_int64(x.numel() // columns),
        ctypes.c_int64(columns),
        int(by_rows),
        c.threads(x.numel()),
        ctypes.c_void_p(y.data_ptr()),
    )
    if failed:
        raise MemoryError(f"no memory to transform a tensor of shape {tuple(x.shape)}")
    return y


def _c_takes(x: Tensor, size: int, dim: int) -> bool:
    return (
        c.plain(x)
        and x.dtype in DTYPES
        and x.numel() > 0
        and 1 < size <= reference.LARGEST_KEPT
        and x.shape[dim] % size == 0
    )
