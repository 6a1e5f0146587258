# mypy: disable-error-code="untyped-decorator"
"""Two operands of a matrix from one read: itself and its transpose, as training's GEMMs take them.

A program makes the one and then the other of a part of the matrix that its processor's cache still
holds: memory is read once, and each operand keeps the arrangement of threads that suits it. The
amax of a matrix and of its transformed transpose also come from one read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fp4lab.formats import Level, Selection
from fp4lab.kernels.hadamard.triton import LARGEST_FUSED
from fp4lab.kernels.quantize import triton as single
from fp4lab.kernels.quantize import triton_columns
from fp4lab.kernels.quantize.reference import Quantization, Result
from fp4lab.kernels.quantize.triton_columns import write_blocks
from fp4lab.kernels.quantize.triton_kernels import write_tile
from fp4lab.kernels.quantize.triton_tiles import load_tile
from fp4lab.kernels.triton.launch import as_integers, launch


@triton.jit(do_not_specialize=["column_offset", "low", "high", "across_low", "across_high"])
def pair_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    across_out_ptr: tl.tensor,
    amax_ptr: tl.tensor,
    across_amax_ptr: tl.tensor,
    state_ptr: tl.tensor,
    across_state_ptr: tl.tensor,
    row_ids_ptr: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    across_row_stride: tl.tensor,
    across_column_stride: tl.tensor,
    column_offset: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    across_low: tl.tensor,
    across_high: tl.tensor,
    straight_plan: tl.constexpr,
    straight: tl.constexpr,
    across_plan: tl.constexpr,
    across: tl.constexpr,
    by_columns: tl.constexpr,
    turned: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    REPEAT: tl.constexpr,
) -> None:
    """Both operands of REPEAT tiles below one another; the first is written as x is stored."""
    down = tl.cdiv(num_rows, ROWS * REPEAT)
    pid = tl.program_id(0).to(tl.int64)
    first_column = (pid // down) * COLUMNS
    for repeat in range(REPEAT):
        first_row = (pid % down) * (ROWS * REPEAT) + repeat * ROWS
        x = load_tile(
            x_ptr,
            first_row,
            first_column,
            num_rows,
            num_columns,
            row_stride,
            column_stride,
            straight.dtype,
            ROWS,
            COLUMNS,
        )
        write_tile(
            x,
            first_row,
            first_column,
            num_rows,
            num_columns,
            out_ptr,
            num_columns,
            1,
            None,
            amax_ptr,
            None,
            state_ptr,
            row_ids_ptr,
            column_offset,
            low,
            high,
            straight_plan,
            straight,
            ROWS,
            COLUMNS,
        )
        if by_columns:
            write_blocks(
                x_ptr,
                first_row,
                first_column,
                num_rows,
                num_columns,
                row_stride,
                column_stride,
                across_out_ptr,
                None,
                across_amax_ptr,
                across_state_ptr,
                row_ids_ptr,
                column_offset,
                across_low,
                across_high,
                across_plan,
                across,
                turned,
                ROWS,
                COLUMNS,
            )
        else:
            x = load_tile(
                x_ptr,
                first_column,
                first_row,
                num_columns,
                num_rows,
                column_stride,
                row_stride,
                across.dtype,
                COLUMNS,
                ROWS,
            )
            write_tile(
                x,
                first_column,
                first_row,
                num_columns,
                num_rows,
                across_out_ptr,
                across_row_stride,
                across_column_stride,
                None,
                across_amax_ptr,
                None,
                across_state_ptr,
                row_ids_ptr,
                column_offset,
                across_low,
                across_high,
                across_plan,
                across,
                COLUMNS,
                ROWS,
            )


def fuses(straight: Quantization, across: Quantization) -> bool:
    """Whether one kernel computes both; else they are computed one after the other."""
    formats = (straight.format, across.format)
    noises = [asked.noise for asked in (straight, across) if asked.noise is not None]
    return (
        straight.x_MK is across.x_MK
        and (straight.transposed, across.transposed) == (False, True)
        and all(fmt.block is None or 0 not in fmt.block for fmt in formats)
        and straight.hadamard_size <= LARGEST_FUSED
        and across.hadamard_size <= LARGEST_FUSED
        and all(noise.row_ids is noises[0].row_ids for noise in noises)
        and all(noise.column_offset == noises[0].column_offset for noise in noises)
    )


def operand_pair(
    straight: Quantization,
    across: Quantization,
    dtype: torch.dtype = torch.float32,
    turned: bool = False,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """`operand` of a matrix and of its transpose, that with the strides of x^T or row-major."""
    if not fuses(straight, across):
        return single.operand(straight, dtype), single.operand(across, dtype, turned)
    columns = by_columns(straight, across)
    rows, width, repeat = (
        triton_columns.extents(across) if columns else (*_tile(straight, across), 1)
    )
    tile = (rows, width)
    amax = _amax_pair(straight, across)
    first = single.prepared(straight, Result.OPERAND, dtype, tile=tile, amax=amax[0])
    second = single.prepared(across, Result.OPERAND, dtype, tile=tile[::-1], amax=amax[1])
    outs = [single.values(asked, dtype, turned) for asked in (straight, across)]
    noises = [single.noise_arguments(asked) for asked in (straight, across)]
    row_ids, offset = next(
        ((noise.row_ids, noise.column_offset) for noise in noises if noise.state is not None),
        (None, 0),
    )
    num_rows, num_columns = first.x_MK.shape
    launch(
        pair_kernel,
        triton.cdiv(num_rows, rows * repeat) * triton.cdiv(num_columns, width),
        (
            as_integers(first.x_MK),
            *(as_integers(out) for out in outs),
            *(operand.amax if operand.amax.numel() else None for operand in (first, second)),
            *(noise.state for noise in noises),
            row_ids,
            num_rows,
            num_columns,
            *first.x_MK.stride(),
            *outs[1].stride(),
            offset,
            *noises[0].salts,
            *noises[1].salts,
        ),
        warps=width // 64 if columns else single.warps(tile),
        straight_plan=first.plan,
        straight=first.how,
        across_plan=second.plan,
        across=second.how,
        by_columns=columns,
        turned=turned,
        ROWS=rows,
        COLUMNS=width,
        REPEAT=repeat,
    )
    return (outs[0], single.epilogue(first)), (outs[1], single.epilogue(second))


def by_columns(straight: Quantization, across: Quantization) -> bool:
    """Whether `triton_columns` makes the transpose; blocks of the matrix then lie in its tiles."""
    if not triton_columns.takes(across):
        return False
    rows, width, _ = triton_columns.extents(across)
    sides = straight.format.block or (1, 1)
    return sides[0] <= rows and sides[1] <= width and straight.format.selection == Selection.NONE


def _tile(straight: Quantization, across: Quantization) -> tuple[int, int]:
    """A stored tile that holds whole blocks of both orientations."""
    rows, columns = straight.format.block or (1, 1)
    across_rows, across_columns = across.format.block or (1, 1)
    return max(64, rows, across_columns), max(64, columns, across_rows)


def _amax_pair(straight: Quantization, across: Quantization) -> tuple[Tensor | None, Tensor | None]:
    """Second-level amax of both operands, where one read gives them."""
    own = [
        asked.amax is None and asked.format.level == Level.TENSOR for asked in (straight, across)
    ]
    if straight.hadamard is not None or not all(own):
        return None, None
    if across.hadamard is None:
        amax = single.amax(straight)
        return amax, amax
    if not triton_columns.takes(across):
        return None, None
    amax = torch.zeros(1, dtype=torch.float32, device=straight.x_MK.device)
    how = single.how_to(across, Result.OPERAND, torch.float32)
    return amax, triton_columns.amax(across, single.amax_how(how), amax)
