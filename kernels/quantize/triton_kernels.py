# mypy: disable-error-code="untyped-decorator"
"""The quantizing kernels: amax, one operand, and two operands from one read of a matrix.

A kernel sees the operand: for a transposed one the strides are exchanged. Blocks never cross tiles;
where one scale covers whole rows or the tensor, the block amax comes from an earlier kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fp4lab.kernels.hadamard.triton import hadamard_tile
from fp4lab.kernels.minifloat.triton import INFINITY, MAGNITUDE, NAN, encode, one_nan, stored_as
from fp4lab.kernels.quantize.reference import Result
from fp4lab.kernels.quantize.triton_native import nearest_pairs, stochastic_quads
from fp4lab.kernels.quantize.triton_scales import NO_LEVEL, block_scales, scale_codes
from fp4lab.kernels.quantize.triton_tiles import (
    NO_SELECTION,
    amax_of_blocks,
    four_over_six,
    load_tile,
    operand_noise,
    outer_tile,
    rounded,
    scaled,
)

CODES = tl.constexpr(int(Result.CODES))
OPERAND = tl.constexpr(int(Result.OPERAND))
DEQUANTIZED = tl.constexpr(int(Result.DEQUANTIZED))


@triton.jit
def amax_kernel(
    x_ptr: tl.tensor,
    amax_ptr: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    how: tl.constexpr,
    by_row: tl.constexpr,
    REPEAT: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Largest magnitude of the (transformed) operand, or of its rows, as bits into zeros."""
    across = tl.cdiv(num_columns, COLUMNS * REPEAT)
    pid = tl.program_id(0).to(tl.int64)
    first_row = (pid // across) * ROWS
    most = tl.zeros((ROWS, COLUMNS), tl.int32)
    for repeat in tl.static_range(REPEAT):
        x = load_tile(
            x_ptr,
            first_row,
            ((pid % across) * REPEAT + repeat) * COLUMNS,
            num_rows,
            num_columns,
            row_stride,
            column_stride,
            how.dtype,
            ROWS,
            COLUMNS,
        )
        if how.hadamard > 0:
            x = hadamard_tile(x, how.hadamard, how.signs, how.dtype, ROWS, COLUMNS)
        most = tl.maximum(most, x.to(tl.int32, bitcast=True) & MAGNITUDE)
    largest = tl.max(most, axis=1)
    if by_row:
        row = first_row + tl.arange(0, ROWS)
        largest = tl.where(largest > INFINITY, NAN, largest)
        tl.atomic_max(amax_ptr + row, largest, mask=row < num_rows)
    else:
        largest = tl.max(largest, axis=0)
        tl.atomic_max(amax_ptr, tl.where(largest > INFINITY, NAN, largest))


@triton.jit
def write_tile(
    x: tl.tensor,
    first_row: tl.tensor,
    first_column: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    out_ptr: tl.tensor,
    out_row_stride: tl.tensor,
    out_column_stride: tl.tensor,
    scales_ptr: tl.tensor,
    amax_ptr: tl.tensor,
    block_amax_ptr: tl.tensor,
    state_ptr: tl.tensor,
    row_ids_ptr: tl.tensor,
    column_offset: tl.tensor,
    salt_low: tl.tensor,
    salt_high: tl.tensor,
    plan: tl.constexpr,
    how: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Transform, quantize and write a loaded tile of an operand, and its block scales."""
    r: tl.constexpr = plan.block_rows
    c: tl.constexpr = plan.block_columns
    A: tl.constexpr = ROWS // r
    B: tl.constexpr = COLUMNS // c
    if how.hadamard > 0:
        x = hadamard_tile(x, how.hadamard, how.signs, how.dtype, ROWS, COLUMNS)
    random = 0
    if how.noise_bits > 0:
        random = operand_noise(
            state_ptr,
            row_ids_ptr,
            first_row,
            first_column,
            num_rows,
            num_columns,
            column_offset,
            salt_low,
            salt_high,
            how,
            ROWS,
            COLUMNS,
        )
        random = tl.reshape(random, (A, r, B, c))
    x = tl.reshape(x, (A, r, B, c))
    if plan.scale is None:
        values = rounded(x, random, plan, how.noise_bits)
    else:
        block_amax = tile_block_amax(x, block_amax_ptr, first_row, num_rows, plan, how, A, B)
        outer = outer_tile(amax_ptr, first_row, num_rows, plan, A)
        values, scale = scaled_and_rounded(x, random, block_amax, outer, plan, how, A, B)
        if how.result == CODES or (how.result == OPERAND and plan.late_scale):
            kind: tl.constexpr = plan.scale
            kept = scale_codes(scale, kind) if how.result == CODES else one_nan(scale)
            write_scales(
                kept, first_row, first_column, num_rows, num_columns, scales_ptr, plan, A, B
            )
    values = tl.reshape(values, (ROWS, COLUMNS))
    row = first_row + tl.arange(0, ROWS)[:, None]
    if how.result == CODES and plan.packed:
        packed = packed_codes(values, random, first_column, num_columns, plan, how, ROWS, COLUMNS)
        column = first_column // 2 + tl.arange(0, COLUMNS // 2)[None, :]
        at = out_ptr + row * out_row_stride + column * out_column_stride
        # the stride is the number of bytes in a row, whose divisors the compiler knows
        inside = (row < num_rows) & (column < out_row_stride)
        tl.store(at, packed, mask=inside)
    else:
        column = first_column + tl.arange(0, COLUMNS)[None, :]
        at = out_ptr + row * out_row_stride + column * out_column_stride
        if how.result == CODES:
            element: tl.constexpr = plan.element
            out = encode(values, element).to(out_ptr.dtype.element_ty)
        else:
            out = stored_as(values, how.out_dtype)
        tl.store(at, out, mask=(row < num_rows) & (column < num_columns))


@triton.jit
def scaled_and_rounded(
    x: tl.tensor,
    random: tl.tensor,
    block_amax: tl.tensor,
    outer: tl.tensor,
    plan: tl.constexpr,
    how: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
) -> tl.tensor:
    """What becomes of the elements `[A, r, B, c]`, and the block scales `[A, B]`.

    For native codes the elements are only scaled.
    """
    r: tl.constexpr = plan.block_rows
    c: tl.constexpr = plan.block_columns
    NOISE: tl.constexpr = how.noise_bits
    if plan.selection != NO_SELECTION:
        values, scale = four_over_six(x, random, block_amax, outer, plan, NOISE, A, r, B, c)
    else:
        scale, multiplier = block_scales(block_amax, outer, plan, 1.0)
        values = scaled(x, multiplier, plan)
        if not how.native:
            values = rounded(values, random, plan, NOISE)
    if how.result == DEQUANTIZED:
        factor = scale
        if plan.level != NO_LEVEL:
            factor = (scale * outer) * plan.inverse_factor
        values = values * factor[:, None, :, None]
    elif how.result == OPERAND and not plan.late_scale:
        values = values * scale[:, None, :, None]
    return values, scale


@triton.jit
def packed_codes(
    values: tl.tensor,
    random: tl.tensor,
    first_column: tl.tensor,
    num_columns: tl.tensor,
    plan: tl.constexpr,
    how: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Two 4-bit codes a byte, uint8 `[ROWS, COLUMNS / 2]`."""
    if how.native and how.noise_bits == 0:
        packed = nearest_pairs(values, ROWS, COLUMNS)
    elif how.native:
        packed = stochastic_quads(values, tl.reshape(random, (ROWS, COLUMNS)), ROWS, COLUMNS)
    else:
        element: tl.constexpr = plan.element
        code = encode(values, element)
        if element.nan_code != 0:
            # what pads a last odd column is 0, also where its block's scale is NaN
            column = first_column + tl.arange(0, COLUMNS)[None, :]
            code = tl.where(column < num_columns, code, 0)
        low, high = tl.split(tl.reshape(code, (ROWS, COLUMNS // 2, 2)))
        packed = (low | (high << 4)).to(tl.uint8)
    return packed


@triton.jit
def tile_block_amax(
    x: tl.tensor,
    block_amax_ptr: tl.tensor,
    first_row: tl.tensor,
    num_rows: tl.tensor,
    plan: tl.constexpr,
    how: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
) -> tl.tensor:
    """Largest magnitudes of the blocks of a tile, read where blocks are larger than it."""
    if plan.whole == 0:
        amax = amax_of_blocks(x, how.transposed, A, plan.block_rows, B, plan.block_columns)
    elif plan.whole == 1:
        amax = tl.load(block_amax_ptr + tl.zeros((1, 1), tl.int32))
    else:
        row = first_row + tl.arange(0, A)[:, None]
        amax = tl.load(block_amax_ptr + row, mask=row < num_rows, other=0.0)
    return amax


@triton.jit
def write_scales(
    kept: tl.tensor,
    first_row: tl.tensor,
    first_column: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    scales_ptr: tl.tensor,
    plan: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
) -> None:
    """Stored block scales of a tile, row-major; of larger blocks the first tile writes them."""
    kept = kept.to(scales_ptr.dtype.element_ty)
    if plan.whole == 0:
        across = (num_columns + plan.block_columns - 1) // plan.block_columns
        row = first_row // plan.block_rows + tl.arange(0, A)[:, None]
        column = first_column // plan.block_columns + tl.arange(0, B)[None, :]
        inside = (row * plan.block_rows < num_rows) & (column < across)
        tl.store(scales_ptr + row * across + column, kept, mask=inside)
    else:
        row = first_row // plan.block_rows + tl.arange(0, A)[:, None]
        first = first_column if plan.whole == 2 else first_column + first_row
        inside = (row * plan.block_rows < num_rows) & (row * 0 + first == 0)
        tl.store(scales_ptr + row, kept, mask=inside)


@triton.jit(do_not_specialize=["column_offset", "salt_low", "salt_high"])
def quantize_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    amax_ptr: tl.tensor,
    block_amax_ptr: tl.tensor,
    state_ptr: tl.tensor,
    row_ids_ptr: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    out_row_stride: tl.tensor,
    out_column_stride: tl.tensor,
    column_offset: tl.tensor,
    salt_low: tl.tensor,
    salt_high: tl.tensor,
    plan: tl.constexpr,
    how: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """One operand."""
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
        how.dtype,
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
        out_row_stride,
        out_column_stride,
        scales_ptr,
        amax_ptr,
        block_amax_ptr,
        state_ptr,
        row_ids_ptr,
        column_offset,
        salt_low,
        salt_high,
        plan,
        how,
        ROWS,
        COLUMNS,
    )
