# mypy: disable-error-code="untyped-decorator, assignment, var-annotated"
"""Stored rows as vectors along the columns, a tuple of them: what `triton_columns` is made of.

Element k of a column's block is the column's entry of vector k, so that sums, largest magnitudes
and rounding go from vector to vector, and no element ever changes its thread.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fp4lab.kernels.hadamard.triton import add_term, join_columns, split_columns
from fp4lab.kernels.minifloat.triton import MAGNITUDE, rounded_to, to_float32
from fp4lab.kernels.philox.triton import noise_tile, word_tile


@triton.jit
def load_rows(
    x_ptr: tl.tensor,
    first_row: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    how: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """Rows of the matrix as a tuple of float32 vectors, 0 outside."""
    rows = ()
    for k in tl.static_range(ROWS):
        at = x_ptr + (first_row + k) * row_stride + column * column_stride
        raw = tl.load(at, mask=inside, other=0)
        rows = rows + (to_float32(raw, how.dtype),)
    return rows


@triton.jit
def hadamard_sums(rows: tl.tensor, how: tl.constexpr, ROWS: tl.constexpr) -> tl.tensor:
    """The Hadamard transform of the rows, in groups, before it is scaled; or they themselves."""
    SIZE: tl.constexpr = how.hadamard
    if SIZE > 1:
        made = ()
        for group in tl.static_range(ROWS // SIZE):
            # what the sums start with decides the sign of a sum of zeros
            first = rows[group * SIZE]
            sums = (0.0 - first if how.signs & 1 else 0.0 + first,)
            for k in tl.static_range(1, SIZE):
                if k & (k - 1) == 0:
                    sums = sums + sums
                sums = add_term(sums, rows[group * SIZE + k], k, how.signs)
            made = made + sums
        rows = made
    return rows


@triton.jit
def transformed(sums: tl.tensor, how: tl.constexpr) -> tl.tensor:
    """Sums scaled and rounded to the dtype of x."""
    if how.hadamard > 1:
        scale: tl.constexpr = how.hadamard**-0.5
        sums = rounded_to(sums * scale, how.dtype)
    return sums


@triton.jit
def largest_bits(rows: tl.tensor, ROWS: tl.constexpr) -> tl.tensor:
    """Bits of the largest magnitude of every column; those of NaN are larger than infinity's."""
    most = tl.abs(rows[0])
    for k in tl.static_range(1, ROWS):
        most = tl.maximum(most, tl.abs(rows[k]), propagate_nan=tl.PropagateNan.ALL)
    return most.to(tl.int32, bitcast=True) & MAGNITUDE


@triton.jit
def noise_rows(
    state_ptr: tl.tensor,
    row_ids_ptr: tl.tensor,
    first_row: tl.tensor,
    first_column: tl.tensor,
    num_rows: tl.tensor,
    salt_low: tl.tensor,
    salt_high: tl.tensor,
    how: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Noise of the rows, a tuple of vectors; `first_column` is a global number."""
    if how.noise_bits == 8 and how.aligned:
        # four bytes change threads as one word
        word = word_tile(
            state_ptr,
            row_ids_ptr,
            first_row,
            first_column,
            num_rows,
            salt_low,
            salt_high,
            8,
            ROWS,
            WIDTH,
        )
        words = split_columns(tl.trans(word), WIDTH // 4, ROWS)
        shift = (tl.arange(0, 4) * 8).to(tl.uint32)[None, :]
        rows = ()
        for k in tl.static_range(ROWS):
            rows = rows + (tl.reshape((words[k][:, None] >> shift) & 0xFF, (WIDTH,)),)
    else:
        noise = noise_tile(
            state_ptr,
            row_ids_ptr,
            first_row,
            first_column,
            num_rows,
            salt_low,
            salt_high,
            how.noise_bits,
            how.aligned,
            ROWS,
            WIDTH,
        )
        rows = split_columns(tl.trans(noise), WIDTH, ROWS)
    return rows


@triton.jit
def write_values(
    made: tl.tensor,
    out_ptr: tl.tensor,
    column: tl.tensor,
    row: tl.tensor,
    inside: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    turned: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """The rows of a block as the matrix is stored, or as parts of the transpose's rows."""
    if turned:
        at = out_ptr + column[:, None] * num_rows + (row + tl.arange(0, BLOCK)[None, :])
        tl.store(at, join_columns(made, WIDTH, BLOCK), mask=inside[:, None])
    else:
        for k in tl.static_range(BLOCK):
            tl.store(out_ptr + (row + k) * num_columns + column, made[k], mask=inside)


@triton.jit
def write_codes(
    codes: tl.tensor,
    words_ptr: tl.tensor,
    column: tl.tensor,
    row: tl.tensor,
    inside: tl.tensor,
    num_rows: tl.tensor,
    plan: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """The codes of a block, which follow one another in memory, as words of 32 bits."""
    BITS: tl.constexpr = 4 if plan.packed else 8
    EACH: tl.constexpr = 32 // BITS
    WORDS: tl.constexpr = BLOCK // EACH
    words = ()
    for n in tl.static_range(WORDS):
        word = codes[n * EACH]
        for k in tl.static_range(1, EACH):
            word = word | (codes[n * EACH + k] << (k * BITS))
        words = words + (word,)
    at = words_ptr + column[:, None] * (num_rows // EACH)
    at = at + (row // EACH + tl.arange(0, WORDS)[None, :])
    tl.store(at, join_columns(words, WIDTH, WORDS), mask=inside[:, None])
