# mypy: disable-error-code="untyped-decorator"
"""The noise of a tile, with the key and the layout that `reference.py` states.

A tile that begins where a counter does draws each counter once; another one (an odd column offset)
draws the counter of every element, several times slower and with the same result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fp4lab.errors import InputError
from fp4lab.kernels.philox.reference import key_salt
from fp4lab.kernels.triton.launch import launch, readable


class NoiseArguments(NamedTuple):
    """A `Noise` as kernels take it."""

    state: Tensor | None
    row_ids: Tensor | None
    column_offset: int
    salts: tuple[int, int]


@triton.jit
def words(
    block: tl.tensor,
    row: tl.tensor,
    state_ptr: tl.tensor,
    salt_low: tl.tensor,
    salt_high: tl.tensor,
) -> tl.tensor:
    """The four words of counters (block, row, step, microbatch); the parts broadcast."""
    low = tl.load(state_ptr).to(tl.uint32) ^ salt_low.to(tl.uint32, bitcast=True)
    high = tl.load(state_ptr + 1).to(tl.uint32) ^ salt_high.to(tl.uint32, bitcast=True)
    step = tl.load(state_ptr + 2).to(tl.uint32)
    microbatch = tl.load(state_ptr + 3).to(tl.uint32)
    c0, c1 = tl.broadcast(block.to(tl.uint32), row.to(tl.uint32))
    c2 = step + tl.zeros_like(c0)
    c3 = microbatch + tl.zeros_like(c0)
    return tl.philox_impl(c0, c1, c2, c3, low, high, 10)


@triton.jit
def word_tile(
    state_ptr: tl.tensor,
    row_ids_ptr: tl.tensor,
    first_row: tl.tensor,
    first_column: tl.tensor,
    num_rows: tl.tensor,
    salt_low: tl.tensor,
    salt_high: tl.tensor,
    bits: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """The words that hold the noise of an aligned tile, uint32 `[ROWS, COLUMNS * bits / 32]`."""
    LANES: tl.constexpr = 128 // bits
    row = first_row + tl.arange(0, ROWS).to(tl.int64)
    if row_ids_ptr is not None:
        row = tl.load(row_ids_ptr + row, mask=row < num_rows, other=0)
    block = first_column // LANES + tl.arange(0, COLUMNS // LANES)
    w0, w1, w2, w3 = words(block[None, :], row[:, None], state_ptr, salt_low, salt_high)
    # the last two axes are (word // 2, word % 2)
    word = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return tl.reshape(word, (ROWS, COLUMNS * bits // 32))


@triton.jit
def noise_tile(
    state_ptr: tl.tensor,
    row_ids_ptr: tl.tensor,
    first_row: tl.tensor,
    first_column: tl.tensor,
    num_rows: tl.tensor,
    salt_low: tl.tensor,
    salt_high: tl.tensor,
    bits: tl.constexpr,
    aligned: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """uint32 noise `[ROWS, COLUMNS]` of the stored matrix.

    `first_row` is a row of the tensor, `first_column` (int64) a global column.
    """
    LANES: tl.constexpr = 128 // bits
    if aligned:
        noise = word_tile(
            state_ptr,
            row_ids_ptr,
            first_row,
            first_column,
            num_rows,
            salt_low,
            salt_high,
            bits,
            ROWS,
            COLUMNS,
        )
        if bits == 8:
            shift = (tl.arange(0, 4) * 8).to(tl.uint32)[None, None, :]
            noise = tl.reshape((noise[:, :, None] >> shift) & 0xFF, (ROWS, COLUMNS))
    else:
        row = first_row + tl.arange(0, ROWS).to(tl.int64)
        if row_ids_ptr is not None:
            row = tl.load(row_ids_ptr + row, mask=row < num_rows, other=0)
        column = first_column + tl.arange(0, COLUMNS).to(tl.int64)
        block = column // LANES
        w0, w1, w2, w3 = words(block[None, :], row[:, None], state_ptr, salt_low, salt_high)
        lane = (column % LANES).to(tl.int32)[None, :]
        index = lane // 4 if bits == 8 else lane
        noise = tl.where(index == 0, w0, tl.where(index == 1, w1, tl.where(index == 2, w2, w3)))
        if bits == 8:
            noise = (noise >> ((lane % 4) * 8).to(tl.uint32)) & 0xFF
    return noise


@triton.jit(do_not_specialize=["column_offset", "salt_low", "salt_high"])
def random_bits_kernel(
    state_ptr: tl.tensor,
    row_ids_ptr: tl.tensor,
    out_ptr: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    column_offset: tl.tensor,
    salt_low: tl.tensor,
    salt_high: tl.tensor,
    bits: tl.constexpr,
    aligned: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """The noise of a whole tensor."""
    across = tl.cdiv(num_columns, COLUMNS)
    pid = tl.program_id(0).to(tl.int64)
    first_row, first_column = (pid // across) * ROWS, (pid % across) * COLUMNS
    noise = noise_tile(
        state_ptr,
        row_ids_ptr,
        first_row,
        first_column + column_offset,
        num_rows,
        salt_low,
        salt_high,
        bits,
        aligned,
        ROWS,
        COLUMNS,
    )
    row = first_row + tl.arange(0, ROWS)[:, None]
    column = first_column + tl.arange(0, COLUMNS)[None, :]
    at = out_ptr + row * num_columns + column
    out = noise.to(tl.uint8) if bits == 8 else noise.to(tl.int64)
    tl.store(at, out, mask=(row < num_rows) & (column < num_columns))


def salts(stream: int, bits: int) -> tuple[int, int]:
    """`key_salt` as signed 32-bit numbers, so that they have one type as a kernel's arguments."""
    low, high = (word - (word >> 31 << 32) for word in key_salt(stream, bits))
    return low, high


def is_aligned(bits: int, column_offset: int) -> bool:
    """Whether a tensor's first column begins a counter."""
    return bits == 0 or column_offset % (128 // bits) == 0


def takes(state: Tensor, row_ids: Tensor | None, bits: int) -> bool:
    """Whether the kernel draws this noise."""
    same = row_ids is None or row_ids.device == state.device
    return readable(state, row_ids) and same and bits in (8, 32)


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
    """`reference.random_bits`, on the device of `state`."""
    if bits not in (8, 32):
        raise InputError(f"bits={bits} is not a noise mode; use 8 (as the hardware) or 32")
    dtype = torch.uint8 if bits == 8 else torch.int64
    out = torch.empty((num_rows, num_columns), dtype=dtype, device=state.device)
    tile = (32, 128)
    if out.numel():
        launch(
            random_bits_kernel,
            triton.cdiv(num_rows, tile[0]) * triton.cdiv(num_columns, tile[1]),
            (
                state.to(torch.int64).contiguous(),
                None if row_ids is None else row_ids.to(torch.int64).contiguous(),
                out,
                num_rows,
                num_columns,
                column_offset,
                *salts(stream, bits),
            ),
            bits=bits,
            aligned=is_aligned(bits, column_offset),
            ROWS=tile[0],
            COLUMNS=tile[1],
        )
    return out
