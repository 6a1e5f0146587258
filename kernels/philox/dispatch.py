"""The noise of a tensor, and who computes it."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from fp4lab.kernels import backends
from fp4lab.kernels.native import structures as c
from fp4lab.kernels.native.memory import new_result
from fp4lab.kernels.philox import reference


def random_bits(
    num_rows: int,
    num_columns: int,
    state: Tensor,
    *,
    stream: int,
    bits: int,
    row_ids: Tensor | None = None,
    column_offset: int = 0,
) -> Tensor:
    """As `reference.random_bits`, contiguous."""
    reference.check_place(num_rows, num_columns, row_ids, column_offset)
    shape = (num_rows, num_columns)
    how: dict[str, Any] = {
        "stream": stream,
        "bits": bits,
        "row_ids": row_ids,
        "column_offset": column_offset,
    }
    chosen = backends.chosen(state.device)
    if chosen == "triton":
        from fp4lab.kernels.philox import triton as by_triton

        if by_triton.takes(state, row_ids, bits):
            return by_triton.random_bits(*shape, state, **how)
    by_c = chosen == "native" and c.plain(state)
    if not by_c or 0 in shape or bits not in (8, 32):
        drawn = reference.random_bits(*shape, state, **how)
        return drawn.clone(memory_format=torch.contiguous_format)
    row_ids = None if row_ids is None else row_ids.to(torch.int64).contiguous()
    out = new_result(shape, {8: torch.uint8, 32: torch.int32}[bits])
    backends.native("random_bits")(
        ctypes.byref(c.noise(state, stream, bits, column_offset)),
        ctypes.c_void_p(c.address(row_ids)),
        ctypes.c_int64(num_rows),
        ctypes.c_int64(num_columns),
        c.threads(num_rows * num_columns),
        ctypes.c_void_p(out.data_ptr()),
    )
    return out if bits == 8 else out.to(torch.int64) & 0xFFFFFFFF
