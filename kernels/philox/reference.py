"""Philox4x32-10 and the layout of its words over a tensor.

Philox (Salmon et al., SC 2011, "Parallel random numbers: as easy as 1, 2, 3") turns a 128-bit
counter and a 64-bit key into four random 32-bit words with no state, so the noise of an element
depends on nothing but where and when it is:

    key     = (state[0] ^ (stream * 0x9E3779B9), state[1] ^ (bits * 0x85EBCA6B))
    counter = (column block, global row, step, microbatch)

with `state = (hash of seed and layer: low, high; step; microbatch)`, `stream` the operand's number
and `bits` the mode. One counter serves 16 columns with 8 bits or 4 columns with 32 bits:

    bits=8     element (row, c): byte c % 4 (little-endian) of word (c % 16) // 4 of block c // 16
    bits=32    element (row, c): word c % 4 of block c // 4

Rows and columns are those of the tensor as it is stored (tokens x features), also when blocks run
along rows: a shard that knows its row numbers and column offset draws its own part of the same
noise. A ragged last block draws whole words and drops the rest. Row numbers count modulo 2^32.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from fp4lab.errors import InputError

_MASK = 0xFFFFFFFF
_MULTIPLIERS = torch.tensor([[0xD2511F53], [0xCD9E8D57]], device="cpu")
_WEYL = (0x9E3779B9, 0xBB67AE85)
#: what the rounds add to the key, `[10, 2]`
_ROUND_KEYS = torch.arange(10, device="cpu").unsqueeze(1) * torch.tensor(_WEYL, device="cpu")
_MODE = 0x85EBCA6B
#: columns there can be: 4 of them share a block of noise, whose number has 32 bits
COLUMNS = 2**34
#: rows there can be
ROWS = 2**32


def layer_key(seed: int, layer: str) -> tuple[int, int]:
    """Two 32-bit words from a seed and a layer's name (SHA-256: no two layers correlate)."""
    digest = hashlib.sha256(f"{seed}/{layer}".encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def philox4x32(counter_4N: Tensor, key_2: Tensor) -> Tensor:
    """Ten rounds of Philox4x32.

    Args:
        counter_4N: int64 `[4, N]`, each entry in [0, 2^32).
        key_2: int64 `[2]`, each entry in [0, 2^32).

    Returns:
        int32 `[4, N]`: the bit patterns of the random 32-bit words.
    """
    # int64 products wrap modulo 2^64, which leaves both 32-bit halves right; the odd words keep
    # the product's high half as rubbish above bit 31 until they are mixed in and masked
    device = counter_4N.device
    multipliers = _MULTIPLIERS.to(device)
    keys = (key_2 + _ROUND_KEYS.to(device)).unsqueeze(2)
    even_2N, odd_2N = counter_4N[0::2], counter_4N[1::2]
    for key in keys:
        product = (even_2N * multipliers).flip(0)
        mixed = (product >> 32).bitwise_xor_(odd_2N).bitwise_xor_(key)
        even_2N, odd_2N = mixed.bitwise_and_(_MASK), product
    return torch.stack((even_2N, odd_2N), dim=1).flatten(0, 1).to(torch.int32)


def key_salt(stream: int, bits: int) -> tuple[int, int]:
    """What a stream and a mode change in the two words of a key (by exclusive or)."""
    return stream * _WEYL[0] & _MASK, bits * _MODE & _MASK


def noise_words(state: Tensor, stream: int, bits: int) -> tuple[int, int, int, int]:
    """Key low and high with stream and mode in them, step and microbatch."""
    low, high, step, microbatch = (word & _MASK for word in state.tolist())
    salt = key_salt(stream, bits)
    return low ^ salt[0], high ^ salt[1], step, microbatch


def check_place(
    num_rows: int, num_columns: int, row_ids: Tensor | None, column_offset: int
) -> None:
    """InputError unless there is a number for each row, and columns are below `COLUMNS`."""
    if row_ids is not None and row_ids.shape != (num_rows,):
        raise InputError(
            f"row_ids of shape {tuple(row_ids.shape)}: give one number for each of the {num_rows} "
            "rows"
        )
    if not 0 <= column_offset <= COLUMNS - num_columns:
        raise InputError(
            f"column_offset={column_offset} with {num_columns} columns is outside [0, 2^34); give "
            "the global number of the first column"
        )


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
    """The noise of a `[num_rows, num_columns]` tensor (layout: the module's docstring).

    Args:
        num_rows: rows of the (local) tensor.
        num_columns: columns of the (local) tensor.
        state: int64 `[4]`: key low, key high, step, microbatch.
        stream: number of the operand, so that two operands of a layer never share noise.
        bits: 8 or 32.
        row_ids: int64 `[num_rows]` global row numbers, or None for 0, 1, ..
        column_offset: global number of the first column.

    Returns:
        `[num_rows, num_columns]` in [0, 2^bits): uint8, or int64 for 32 bits.
    """
    if bits not in (8, 32):
        raise InputError(f"bits={bits} is not a noise mode; use 8 (as the hardware) or 32")
    lanes = 128 // bits
    device = state.device
    first, last = column_offset // lanes, (column_offset + num_columns - 1) // lanes
    blocks_B = torch.arange(first, last + 1, device=device)
    rows_M = torch.arange(num_rows, device=device) if row_ids is None else row_ids.to(torch.int64)
    state = state.to(torch.int64) & _MASK
    counter_4MB = torch.stack(
        [
            part.expand(num_rows, len(blocks_B))
            for part in (blocks_B, (rows_M & _MASK).unsqueeze(1), state[2], state[3])
        ]
    )
    salt = torch.tensor(key_salt(stream, bits), device=device)
    words = philox4x32(counter_4MB.flatten(1), state[:2] ^ salt)
    words_ML = words.t().contiguous().view(num_rows, 4 * len(blocks_B))
    noise = words_ML.view(torch.uint8) if bits == 8 else words_ML.to(torch.int64) & _MASK
    start = column_offset - first * lanes
    return noise[:, start : start + num_columns]
