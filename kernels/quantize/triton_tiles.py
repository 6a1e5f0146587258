# mypy: disable-error-code="untyped-decorator"
"""What every quantizing kernel does with a tile: `reference.py` in Triton.

Letters as in `reference.py`: a tile of ROWS x COLUMNS is held as `[A, r, B, c]`, blocks of r x c
elements, its block amax and scales as `[A, B]`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fp4lab.formats import Level, Selection
from fp4lab.kernels.hadamard.triton import split_columns
from fp4lab.kernels.minifloat.triton import MAGNITUDE, nearest, stochastic, to_float32
from fp4lab.kernels.philox.triton import noise_tile
from fp4lab.kernels.quantize.triton_scales import NO_LEVEL, block_scales

ROW = tl.constexpr(int(Level.ROW))
NO_SELECTION = tl.constexpr(int(Selection.NONE))
MSE = tl.constexpr(int(Selection.MSE))


@triton.jit
def load_tile(
    x_ptr: tl.tensor,
    first_row: tl.tensor,
    first_column: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    dtype: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """A tile as float32, 0 outside the matrix; the first row and column are int64."""
    row = first_row + tl.arange(0, ROWS)[:, None]
    column = first_column + tl.arange(0, COLUMNS)[None, :]
    at = x_ptr + row * row_stride + column * column_stride
    raw = tl.load(at, mask=(row < num_rows) & (column < num_columns), other=0)
    return to_float32(raw, dtype)


@triton.jit
def operand_noise(
    state_ptr: tl.tensor,
    row_ids_ptr: tl.tensor,
    first_row: tl.tensor,
    first_column: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    column_offset: tl.tensor,
    salt_low: tl.tensor,
    salt_high: tl.tensor,
    how: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Noise of a tile of the operand; its layout is that of the matrix as it is stored."""
    if how.transposed:
        noise = tl.trans(
            noise_tile(
                state_ptr,
                row_ids_ptr,
                first_column,
                first_row + column_offset,
                num_columns,
                salt_low,
                salt_high,
                how.noise_bits,
                how.aligned,
                COLUMNS,
                ROWS,
            )
        )
    else:
        noise = noise_tile(
            state_ptr,
            row_ids_ptr,
            first_row,
            first_column + column_offset,
            num_rows,
            salt_low,
            salt_high,
            how.noise_bits,
            how.aligned,
            ROWS,
            COLUMNS,
        )
    return noise


@triton.jit
def amax_of_blocks(
    x: tl.tensor,
    transposed: tl.constexpr,
    A: tl.constexpr,
    r: tl.constexpr,
    B: tl.constexpr,
    c: tl.constexpr,
) -> tl.tensor:
    """The largest magnitude of every block, `[A, B]`; NaN where there is one.

    Taken on bits: those of NaN are larger than infinity's, and no comparison meets a float. First
    along what is stored as a row, of which a thread has several neighbours.
    """
    most = tl.reshape(x.to(tl.int32, bitcast=True) & MAGNITUDE, (A, r, B, c))
    if transposed:
        most = tl.max(tl.max(most, axis=1), axis=2)
    else:
        most = tl.max(tl.max(most, axis=3), axis=1)
    return most.to(tl.float32, bitcast=True)


@triton.jit
def outer_tile(
    amax_ptr: tl.tensor,
    first_row: tl.tensor,
    num_rows: tl.tensor,
    plan: tl.constexpr,
    A: tl.constexpr,
) -> tl.tensor:
    """The second-level amax: `[A, 1]` by rows, else `[1, 1]` (1 where there is none)."""
    if plan.level == NO_LEVEL:
        outer = tl.full((1, 1), 1.0, tl.float32)
    elif plan.level == ROW:
        row = first_row + tl.arange(0, A)[:, None]
        outer = tl.load(amax_ptr + row, mask=row < num_rows, other=1.0)
    else:
        outer = tl.load(amax_ptr + tl.zeros((1, 1), tl.int32))
    return outer


@triton.jit
def scaled(x: tl.tensor, multiplier: tl.tensor, plan: tl.constexpr) -> tl.tensor:
    """Elements `[A, r, B, c]` times multipliers `[A, B]`."""
    v = x * multiplier[:, None, :, None]
    # -0 + 0 is 0
    return v if plan.keep_negative_zero else v + 0.0


@triton.jit
def rounded(
    v: tl.tensor, random: tl.tensor, plan: tl.constexpr, noise_bits: tl.constexpr
) -> tl.tensor:
    """Scaled elements on the grid."""
    element: tl.constexpr = plan.element
    if noise_bits == 0:
        q = nearest(v, element, plan.ties, plan.saturate)
    else:
        q = stochastic(v, random, element, noise_bits, plan.saturate)
    return q


@triton.jit
def four_over_six(
    x: tl.tensor,
    random: tl.tensor,
    block_amax: tl.tensor,
    outer: tl.tensor,
    plan: tl.constexpr,
    noise_bits: tl.constexpr,
    A: tl.constexpr,
    r: tl.constexpr,
    B: tl.constexpr,
    c: tl.constexpr,
) -> tl.tensor:
    """Values and scales of the better of the two mappings of each block; a tie keeps 6."""
    scale4, multiplier4 = block_scales(block_amax, outer, plan, 1.5)
    values4 = rounded(scaled(x, multiplier4, plan), random, plan, noise_bits)
    error4 = _error(x, values4, scale4, outer, plan, A, r, B, c)
    scale6, multiplier6 = block_scales(block_amax, outer, plan, 1.0)
    values6 = rounded(scaled(x, multiplier6, plan), random, plan, noise_bits)
    error6 = _error(x, values6, scale6, outer, plan, A, r, B, c)
    pick4 = error4 < error6
    values = tl.where(pick4[:, None, :, None], values4, values6)
    return values, tl.where(pick4, scale4, scale6)


@triton.jit
def _error(
    x: tl.tensor,
    values: tl.tensor,
    scale: tl.tensor,
    outer: tl.tensor,
    plan: tl.constexpr,
    A: tl.constexpr,
    r: tl.constexpr,
    B: tl.constexpr,
    c: tl.constexpr,
) -> tl.tensor:
    """Errors of blocks `[A, B]`: columns summed from left to right, rows in halves."""
    meant = (values * scale[:, None, :, None]) * outer[:, None, :, None]
    difference = tl.div_rn(meant, tl.full(meant.shape, plan.amax_factor, tl.float32)) - x
    error = difference * difference if plan.selection == MSE else tl.abs(difference)
    columns = split_columns(tl.reshape(error, (A * r * B, c)), A * r * B, c)
    total = columns[0]
    for column in tl.static_range(1, c):
        total = total + columns[column]
    total = tl.reshape(total, (A, r, B))
    for halving in tl.static_range(7):
        if r >> (halving + 1) > 0:
            # two terms, which have one order only
            total = tl.sum(tl.reshape(total, (A, 2, r >> (halving + 1), B)), axis=1)
    return tl.reshape(total, (A, B))
