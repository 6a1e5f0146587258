# mypy: disable-error-code="untyped-decorator"
"""From codes and scales back to values: `reference.from_storage`, for any block."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fp4lab.formats import WHOLE, BlockFormat
from fp4lab.kernels.minifloat.triton import decode, stored_as
from fp4lab.kernels.quantize import reference
from fp4lab.kernels.quantize.reference import Result, block_sides
from fp4lab.kernels.quantize.stored import Stored
from fp4lab.kernels.quantize.triton_kernels import DEQUANTIZED
from fp4lab.kernels.quantize.triton_scales import NO_LEVEL, scale_values
from fp4lab.kernels.quantize.triton_tiles import ROW
from fp4lab.kernels.schema import DTYPES
from fp4lab.kernels.triton.constants import Element, Plan
from fp4lab.kernels.triton.launch import as_integers, launch, readable


@triton.jit
def dequantize_kernel(
    codes_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    amax_ptr: tl.tensor,
    out_ptr: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    width: tl.tensor,
    block_rows: tl.tensor,
    block_columns: tl.tensor,
    plan: tl.constexpr,
    result: tl.constexpr,
    out_dtype: tl.constexpr,
    RUN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Row-major codes to row-major values; RUN columns from a multiple of it share a scale."""
    tiles = tl.cdiv(num_columns, COLUMNS)
    pid = tl.program_id(0).to(tl.int64)
    first_row, first_column = (pid // tiles) * ROWS, (pid % tiles) * COLUMNS
    row = first_row + tl.arange(0, ROWS)[:, None]
    values = stored_tile(
        codes_ptr,
        scales_ptr,
        amax_ptr,
        row,
        first_column,
        num_rows,
        num_columns,
        width,
        block_rows,
        block_columns,
        plan,
        result,
        RUN,
        ROWS,
        COLUMNS,
    )
    column = first_column + tl.arange(0, COLUMNS)[None, :]
    out_at = out_ptr + row * num_columns + column
    inside = (row < num_rows) & (column < num_columns)
    tl.store(out_at, stored_as(values, out_dtype), mask=inside)


@triton.jit
def stored_tile(
    codes_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    amax_ptr: tl.tensor,
    row: tl.tensor,
    first_column: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    width: tl.tensor,
    block_rows: tl.tensor,
    block_columns: tl.tensor,
    plan: tl.constexpr,
    result: tl.constexpr,
    RUN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """float32 values of a tile, 0 outside the matrix; `row` is int64 `[ROWS, 1]`."""
    element: tl.constexpr = plan.element
    codes = load_codes(codes_ptr, row, first_column, num_rows, width, plan.packed, ROWS, COLUMNS)
    values = decode(codes, element)
    LATE: tl.constexpr = plan.late_scale and result != DEQUANTIZED
    if plan.scale is not None and not LATE:
        kind: tl.constexpr = plan.scale
        across = tl.cdiv(num_columns, block_columns)
        run = first_column + tl.arange(0, COLUMNS // RUN)[None, :] * RUN
        at = scales_ptr + (row // block_rows) * across + run // block_columns
        inside = (row < num_rows) & (run < num_columns)
        factor = scale_values(tl.load(at, mask=inside, other=0), kind)
        if result == DEQUANTIZED and plan.level != NO_LEVEL:
            if plan.level == ROW:
                outer = tl.load(amax_ptr + row, mask=row < num_rows, other=0.0)
            else:
                outer = tl.load(amax_ptr + row * 0)
            factor = (factor * outer) * plan.inverse_factor
        values = tl.reshape(values, (ROWS, COLUMNS // RUN, RUN)) * factor[:, :, None]
        values = tl.reshape(values, (ROWS, COLUMNS))
    return values


@triton.jit
def load_codes(
    codes_ptr: tl.tensor,
    row: tl.tensor,
    first_column: tl.tensor,
    num_rows: tl.tensor,
    width: tl.tensor,
    packed: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """int32 codes of a tile; `row` is int64 `[ROWS, 1]`, a row of codes has `width` numbers."""
    if packed:
        column = first_column // 2 + tl.arange(0, COLUMNS // 2)[None, :]
        inside = (row < num_rows) & (column < width)
        pair = tl.load(codes_ptr + row * width + column, mask=inside, other=0).to(tl.int32)
        codes = tl.reshape(tl.join(pair & 15, (pair >> 4) & 15), (ROWS, COLUMNS))
    else:
        column = first_column + tl.arange(0, COLUMNS)[None, :]
        inside = (row < num_rows) & (column < width)
        codes = tl.load(codes_ptr + row * width + column, mask=inside, other=0)
        codes = codes.to(tl.int32) & 0xFFFF
    return codes


@triton.jit
def scales_kernel(
    scales_ptr: tl.tensor,
    out_ptr: tl.tensor,
    count: tl.tensor,
    scale: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Codes of scales to float32."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    codes = tl.load(scales_ptr + at, mask=at < count, other=0)
    tl.store(out_ptr + at, scale_values(codes, scale), mask=at < count)


def _run(q: Stored, num_columns: int, dtype: torch.dtype, result: Result) -> Tensor:
    codes, scales, amax, fmt = q
    # an operand takes no second level, and only an amax enters values
    rows = codes.shape[0]
    written = dtype if dtype in DTYPES else torch.float32
    out = torch.empty((rows, num_columns), dtype=written, device=codes.device)
    block_rows, block_columns = block_sides(fmt, rows, num_columns)
    # the largest power of two that divides a block's columns, so that runs never cross blocks
    tile = (32, 128)
    run = min(block_columns & -block_columns, tile[1])
    if fmt.block is not None and fmt.block[1] == WHOLE:
        run = tile[1]
    if out.numel():
        launch(
            dequantize_kernel,
            triton.cdiv(rows, tile[0]) * triton.cdiv(num_columns, tile[1]),
            (
                codes.contiguous(),
                scales.contiguous() if scales.numel() else None,
                amax.contiguous() if amax.numel() else None,
                as_integers(out),
                rows,
                num_columns,
                codes.shape[1],
                block_rows,
                block_columns,
            ),
            plan=Plan.of(fmt, tile),
            result=int(result),
            out_dtype=DTYPES[written],
            RUN=run,
            ROWS=tile[0],
            COLUMNS=tile[1],
        )
    return out.to(dtype)


def takes(q: Stored) -> bool:
    """Whether the kernel reads these codes."""
    return readable(q.codes) and q.codes.dtype in (torch.uint8, torch.int16)


def dequantize(q: Stored, num_columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values that codes and scales stand for, in float32 and then rounded to `dtype`."""
    return _run(q, num_columns, dtype, Result.DEQUANTIZED)


def operand(
    q: Stored, num_columns: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """The operand of a product, and its epilogue, from codes and scales."""
    return _run(q, num_columns, dtype, Result.OPERAND), epilogue(q)


def epilogue(q: Stored) -> Tensor:
    """What multiplies a product of stored codes after the fact."""
    scales = _plain_scales(q.scales, q.format)
    return reference.epilogue(scales, q.tensor_scale, q.format, q.codes.shape[0])


def _plain_scales(scales: Tensor, fmt: BlockFormat) -> Tensor:
    """Scales as numbers, where the epilogue is made of them."""
    if not fmt.whole_rows or fmt.scale is None or fmt.scale.mantissa_bits == 23:
        return scales
    values = torch.empty(scales.shape, dtype=torch.float32, device=scales.device)
    if scales.numel():
        launch(
            scales_kernel,
            triton.cdiv(scales.numel(), 1024),
            (scales.contiguous(), values, scales.numel()),
            scale=Element.of(fmt.scale),
            BLOCK=1024,
        )
    return values
