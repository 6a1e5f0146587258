"""A cast to the grid of an element type, and who computes it."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fp4lab.formats import ElementType, Overflow, Ties
from fp4lab.kernels import backends
from fp4lab.kernels.minifloat import reference
from fp4lab.kernels.minifloat.reference import positive_nan_
from fp4lab.kernels.native import structures as c
from fp4lab.kernels.native.memory import new_result
from fp4lab.kernels.schema import DTYPES


def cast(x: Tensor, element: ElementType, ties: Ties, overflow: Overflow) -> Tensor:
    """The nearest numbers of the element type, as contiguous float32; NaN is 0x7FC00000.

    Args:
        x: any floating-point dtype and shape; float64 is rounded to float32 first.
        element: a signed type with a zero, or FP32.
        ties: where halfway values go.
        overflow: what values beyond the largest become.
    """
    x = x.resolve_neg()
    if x.dtype not in DTYPES:
        x = x.to(torch.float32)
    if element.mantissa_bits == 23:
        return positive_nan_(x.to(torch.float32, copy=True, memory_format=torch.contiguous_format))
    chosen = backends.chosen(x.device)
    if chosen == "triton":
        from fp4lab.kernels.minifloat import triton as by_triton

        if by_triton.takes(x):
            return by_triton.round_nearest(x, element, ties, overflow)
    if chosen != "native" or not c.plain(x):
        rounded = reference.round_nearest(x.to(torch.float32), element, ties, overflow)
        return positive_nan_(rounded).contiguous()
    x = x.contiguous()
    y = new_result(x.shape, torch.float32)
    backends.native("cast")(
        ctypes.byref(c.element(element, ties, overflow)),
        ctypes.c_void_p(x.data_ptr()),
        DTYPES[x.dtype],
        ctypes.c_int64(x.numel()),
        c.threads(x.numel()),
        ctypes.c_void_p(y.data_ptr()),
    )
    return y
