# mypy: disable-error-code="untyped-decorator"
"""The product of each group of rows with its own matrix, as experts need it, in one launch.

The groups' ends stay on the device: programs, as many as the GPU runs at once, walk over all tiles
of all groups and take every n-th. No row count is read by the host; groups may be empty.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fp4lab.kernels.matmul.triton import (
    Factor,
    alpha_tile,
    constants_of,
    product_tile,
    tensors_of,
)
from fp4lab.kernels.minifloat.triton import stored_as
from fp4lab.kernels.triton.launch import as_integers, launch


@triton.jit
def grouped_kernel(
    a_ptr: tl.tensor,
    a_scales_ptr: tl.tensor,
    a_epilogue_ptr: tl.tensor,
    b_ptr: tl.tensor,
    b_scales_ptr: tl.tensor,
    b_epilogue_ptr: tl.tensor,
    out_ptr: tl.tensor,
    ends_ptr: tl.tensor,
    E: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    a_width: tl.tensor,
    b_width: tl.tensor,
    b_scales_size: tl.tensor,
    num_programs: tl.tensor,
    a_plan: tl.constexpr,
    b_plan: tl.constexpr,
    a_run: tl.constexpr,
    b_run: tl.constexpr,
    factor: tl.constexpr,
    a_by_row: tl.constexpr,
    out_dtype: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """All tiles t = pid, pid + num_programs, .. of the groups one after another."""
    across = tl.cdiv(N, COLUMNS)
    tile = tl.program_id(0)
    before = 0
    start = 0
    for e in range(E):
        end = tl.load(ends_ptr + e).to(tl.int32)
        tiles = tl.cdiv(end - start, ROWS) * across
        group = tl.full((), e, tl.int64)
        while tile < before + tiles:
            row = start + ((tile - before) // across) * ROWS + tl.arange(0, ROWS).to(tl.int64)
            column = ((tile - before) % across) * COLUMNS + tl.arange(0, COLUMNS).to(tl.int64)
            b_scales = b_scales_ptr
            if b_scales_ptr is not None:
                b_scales = b_scales_ptr + group * b_scales_size
            sums = product_tile(
                a_ptr,
                a_scales_ptr,
                b_ptr + group * N * b_width,
                b_scales,
                row[:, None],
                column[:, None],
                end,
                N,
                K,
                a_width,
                b_width,
                a_plan,
                b_plan,
                a_run,
                b_run,
                ROWS,
                COLUMNS,
                DEPTH,
            )
            b_epilogue = b_epilogue_ptr
            if b_epilogue_ptr is not None:
                b_epilogue = b_epilogue_ptr + group
            sums = sums * alpha_tile(
                a_epilogue_ptr,
                b_epilogue,
                row[:, None],
                column[None, :],
                end,
                N,
                factor,
                a_by_row,
                False,
            )
            at = out_ptr + row[:, None] * N + column[None, :]
            inside = (row[:, None] < end) & (column[None, :] < N)
            tl.store(at, stored_as(sums, out_dtype), mask=inside)
            tile += num_programs
        before += tiles
        start = end


def grouped_matmul(
    a_TK: Factor, b_ENK: Factor, ends_E: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """`a[ends[e-1]:ends[e]] @ b[e]^T * alpha[e]` for every group e, `[T, N]`.

    Args:
        a_TK: rows sorted by group, with an epilogue of one number, one for each row, or none.
        b_ENK: a matrix for each group, with an epilogue of one number for each, or none.
        ends_E: int32 or int64 `[E]` on the device: the row after each group's last, never falling.
            Rows after the last group stay unwritten.
        dtype: float32, bf16 or fp16.
    """
    E, N = b_ENK.values.shape[:2]
    T, K, device = a_TK.values.shape[0], a_TK.num_columns, a_TK.values.device
    assert b_ENK.epilogue.numel() in (0, E)
    out = torch.empty((T, N), dtype=dtype, device=device)
    # groups are often short
    tile = (64, 128, 64)
    programs = 2
    if device.type == "cuda":
        programs = torch.cuda.get_device_properties(device).multi_processor_count
    scales = b_ENK.scales
    launch(
        grouped_kernel,
        programs,
        (
            *tensors_of(a_TK),
            *tensors_of(b_ENK),
            as_integers(out),
            ends_E.contiguous(),
            E,
            N,
            K,
            a_TK.values.shape[1],
            b_ENK.values.shape[2],
            0 if scales is None or scales.numel() == 0 else scales.shape[1:].numel(),
            programs,
        ),
        warps=8,
        **constants_of(a_TK, b_ENK, dtype, *tile),
    )
    return out
