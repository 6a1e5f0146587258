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
from fp4lab.kernels.quantize.reference import Quantization
from fp4lab.kernels.quantize.triton_columns import write_blocks
from fp4lab.kernels.quantize.triton_kernels import Written, write_tile
from fp4lab.kernels.quantize.triton_tiles import load_tile
from fp4lab.kernels.triton.launch import as_integers, launch


@triton.jit(do_not_specialize=["column_offset", "low", "high", "turned_low", "turned_high"])
def pair_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    turned_out_ptr: tl.tensor,
    amax_ptr: tl.tensor,
    turned_amax_ptr: tl.tensor,
    state_ptr: tl.tensor,
    turned_state_ptr: tl.tensor,
    row_ids_ptr: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    turned_row_stride: tl.tensor,
    turned_column_stride: tl.tensor,
    column_offset: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    turned_low: tl.tensor,
    turned_high: tl.tensor,
    straight_plan: tl.constexpr,
    straight: tl.constexpr,
    turned_plan: tl.constexpr,
    turned: tl.constexpr,
    by_columns: tl.constexpr,
    row_major: tl.constexpr,
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
                turned_out_ptr,
                None,
                turned_amax_ptr,
                turned_state_ptr,
                row_ids_ptr,
                column_offset,
                turned_low,
                turned_high,
                turned_plan,
                turned,
                row_major,
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
                turned.dtype,
                COLUMNS,
                ROWS,
            )
            write_tile(
                x,
                first_column,
                first_row,
                num_columns,
                num_rows,
                turned_out_ptr,
                turned_row_stride,
                turned_column_stride,
                None,
                turned_amax_ptr,
                None,
                turned_state_ptr,
                row_ids_ptr,
                column_offset,
                turned_low,
                turned_high,
                turned_plan,
                turned,
                COLUMNS,
                ROWS,
            )


def fuses(straight: Quantization, turned: Quantization) -> bool:
    """Whether one kernel computes both; else they are computed one after the other."""
    formats = (straight.format, turned.format)
    noises = [asked.noise for asked in (straight, turned) if asked.noise is not None]
    return (
        straight.x_MK is turned.x_MK
        and (straight.transposed, turned.transposed) == (False, True)
        and all(fmt.block is None or 0 not in fmt.block for fmt in formats)
        and straight.hadamard_size <= LARGEST_FUSED
        and turned.hadamard_size <= LARGEST_FUSED
        and all(noise.row_ids is noises[0].row_ids for noise in noises)
        and all(noise.column_offset == noises[0].column_offset for noise in noises)
    )


def operand_pair(
    straight: Quantization,
    turned: Quantization,
    dtype: torch.dtype = torch.float32,
    row_major: bool = False,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """`operand` of a matrix and of its transpose, that with the strides of x^T or row-major."""
    if not fuses(straight, turned):
        return single.operand(straight, dtype), single.operand(turned, dtype, row_major)
    columns = by_columns(straight, turned)
    rows, width, repeat = (
        triton_columns.extents(turned) if columns else (*_tile(straight, turned), 1)
    )
    tile = (rows, width)
    amax = _amax_pair(straight, turned)
    first = single.prepared(straight, Written.OPERAND, dtype, tile=tile, amax=amax[0])
    second = single.prepared(turned, Written.OPERAND, dtype, tile=tile[::-1], amax=amax[1])
    outs = [single.values(asked, dtype, row_major) for asked in (straight, turned)]
    noises = [single.noise_arguments(asked) for asked in (straight, turned)]
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
        turned_plan=second.plan,
        turned=second.how,
        by_columns=columns,
        row_major=row_major,
        ROWS=rows,
        COLUMNS=width,
        REPEAT=repeat,
    )
    return (outs[0], single.epilogue(first)), (outs[1], single.epilogue(second))


def by_columns(straight: Quantization, turned: Quantization) -> bool:
    """Whether `triton_columns` makes the transpose; blocks of the matrix then lie in its tiles."""
    if not triton_columns.takes(turned):
        return False
    rows, width, _ = triton_columns.extents(turned)
    sides = straight.format.block or (1, 1)
    return sides[0] <= rows and sides[1] <= width and straight.format.selection == Selection.NONE


def _tile(straight: Quantization, turned: Quantization) -> tuple[int, int]:
    """A stored tile that holds whole blocks of both orientations."""
    rows, columns = straight.format.block or (1, 1)
    turned_rows, turned_columns = turned.format.block or (1, 1)
    return max(64, rows, turned_columns), max(64, columns, turned_rows)


def _amax_pair(straight: Quantization, turned: Quantization) -> tuple[Tensor | None, Tensor | None]:
    """Second-level amax of both operands, where one read gives them."""
    own = [
        asked.amax is None and asked.format.level == Level.TENSOR for asked in (straight, turned)
    ]
    if straight.hadamard is not None or not all(own):
        return None, None
    if turned.hadamard is None:
        amax = single.amax(straight)
        return amax, amax
    if not triton_columns.takes(turned):
        return None, None
    amax = torch.zeros(1, dtype=torch.float32, device=straight.x_MK.device)
    how = single.how_to(turned, Written.OPERAND, torch.float32)
    return amax, triton_columns.amax(turned, single.amax_how(how), amax)
