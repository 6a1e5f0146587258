# mypy: disable-error-code="untyped-decorator"
"""Two operands of a matrix from one read: itself and its transpose, as training's GEMMs take them.

The amax of both, where both take their own, also comes from one read.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fp4lab.formats import Level
from fp4lab.kernels.hadamard.triton import LARGEST_FUSED, hadamard_tile
from fp4lab.kernels.minifloat.triton import INFINITY, MAGNITUDE, NAN
from fp4lab.kernels.quantize import triton as single
from fp4lab.kernels.quantize.reference import Quantization
from fp4lab.kernels.quantize.triton_kernels import Result, write_tile
from fp4lab.kernels.quantize.triton_tiles import load_tile
from fp4lab.kernels.triton.constants import How
from fp4lab.kernels.triton.launch import as_integers, launch


@triton.jit
def amax_pair_kernel(
    x_ptr: tl.tensor,
    amax_ptr: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    straight: tl.constexpr,
    turned: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Largest magnitudes of the matrix's operand and of its transpose's, as bits into two zeros."""
    across = tl.cdiv(num_columns, COLUMNS)
    pid = tl.program_id(0).to(tl.int64)
    x = load_tile(
        x_ptr,
        (pid // across) * ROWS,
        (pid % across) * COLUMNS,
        num_rows,
        num_columns,
        row_stride,
        column_stride,
        straight.dtype,
        ROWS,
        COLUMNS,
    )
    y = x
    if straight.hadamard > 0:
        y = hadamard_tile(x, straight.hadamard, straight.signs, straight.dtype, ROWS, COLUMNS)
    most = largest_of_tile(y)
    tl.atomic_max(amax_ptr, most)
    if turned.hadamard > 0:
        z = hadamard_tile(tl.trans(x), turned.hadamard, turned.signs, turned.dtype, COLUMNS, ROWS)
        most = largest_of_tile(z)
    elif straight.hadamard > 0:
        most = largest_of_tile(x)
    tl.atomic_max(amax_ptr + 1, most)


@triton.jit
def largest_of_tile(x: tl.tensor) -> tl.tensor:
    """Bits of the largest magnitude, with one NaN."""
    most = tl.max(tl.max(x.to(tl.int32, bitcast=True) & MAGNITUDE, axis=1), axis=0)
    return tl.where(most > INFINITY, NAN, most)


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
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Both operands of a tile, the first written row-major as the matrix is stored."""
    across = tl.cdiv(num_columns, COLUMNS)
    pid = tl.program_id(0).to(tl.int64)
    first_row, first_column = (pid // across) * ROWS, (pid % across) * COLUMNS
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
    write_tile(
        tl.trans(x),
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
        and straight.hadamard <= LARGEST_FUSED
        and turned.hadamard <= LARGEST_FUSED
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
    tile = _tile(straight, turned)
    own = [
        asked.amax is None and asked.format.level == Level.TENSOR for asked in (straight, turned)
    ]
    amax = _amax_pair(straight, turned, tile) if all(own) else (None, None)
    first = single.prepared(straight, Result.OPERAND, dtype, tile=tile, amax=amax[0])
    second = single.prepared(turned, Result.OPERAND, dtype, tile=tile[::-1], amax=amax[1])
    outs = [single.values(asked, dtype, row_major) for asked in (straight, turned)]
    noises = [single.noise_arguments(asked) for asked in (straight, turned)]
    row_ids, offset = next(
        ((noise.row_ids, noise.column_offset) for noise in noises if noise.state is not None),
        (None, 0),
    )
    launch(
        pair_kernel,
        first.programs,
        (
            as_integers(first.x_MK),
            *(as_integers(out) for out in outs),
            *(operand.amax if operand.amax.numel() else None for operand in (first, second)),
            *(noise.state for noise in noises),
            row_ids,
            *first.x_MK.shape,
            *first.x_MK.stride(),
            *outs[1].stride(),
            offset,
            *noises[0].salts,
            *noises[1].salts,
        ),
        warps=single.warps(tile),
        straight_plan=first.plan,
        straight=first.how,
        turned_plan=second.plan,
        turned=second.how,
        ROWS=tile[0],
        COLUMNS=tile[1],
    )
    return (outs[0], single.epilogue(first)), (outs[1], single.epilogue(second))


def _tile(straight: Quantization, turned: Quantization) -> tuple[int, int]:
    """A stored tile that holds whole blocks of both orientations."""
    rows, columns = straight.format.block or (1, 1)
    turned_rows, turned_columns = turned.format.block or (1, 1)
    return max(64, rows, turned_columns), max(64, columns, turned_rows)


def _amax_pair(straight: Quantization, turned: Quantization, tile: tuple[int, int]) -> Any:
    """Second-level amax of both operands, one element each."""
    x_MK = single.plain_matrix(straight)
    amax = torch.zeros(2, dtype=torch.float32, device=x_MK.device)
    rows, columns = x_MK.shape
    launch(
        amax_pair_kernel,
        triton.cdiv(rows, tile[0]) * triton.cdiv(columns, tile[1]),
        (as_integers(x_MK), amax.view(torch.int32), rows, columns, *x_MK.stride()),
        warps=single.warps(tile),
        straight=_transform(straight),
        turned=_transform(turned),
        ROWS=tile[0],
        COLUMNS=tile[1],
    )
    return amax[:1], amax[1:]


def _transform(asked: Quantization) -> How:
    """The constants of an amax kernel."""
    return single.amax_how(single.how_to(asked, Result.OPERAND, torch.float32, fused=True))
