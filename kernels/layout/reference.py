"""Packing two 4-bit codes a byte, and the scale layout that Blackwell's matrix units read.

Letters: M rows, K columns, S scale columns (K / 16 or K / 32).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fp4lab.errors import InputError, expect, whole


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8 codes `[.., K]` below 16 to bytes `[.., ceil(K/2)]`, even columns in the low nibble.

    An odd K leaves the last high nibble 0.
    """
    if codes.shape[-1] % 2:
        codes = F.pad(codes, (0, 1))
    pairs = codes.view(*codes.shape[:-1], codes.shape[-1] // 2, 2)
    return pairs[..., 0] | (pairs[..., 1] << 4)


def unpack_nibbles(packed: Tensor, num_columns: int) -> Tensor:
    """Inverse of `pack_nibbles`: bytes to uint8 codes `[.., num_columns]`."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    return codes[..., :num_columns]


def swizzle_128x4(scales_MS: Tensor) -> Tensor:
    """One-byte block scales to the 128x4 tile layout of cuBLAS and `tcgen05` (padded with 0).

    Row `r`, column `c` goes to tile `(r // 128, c // 4)`; inside a tile the byte offset is
    `(r % 32) * 16 + (r % 128 // 32) * 4 + c % 4`. The result has the shape
    `[roundup(M, 128), roundup(S, 4)]`, whose memory is the sequence of 512-byte tiles.

    Raises:
        InputError: not a matrix, or of a dtype with more than one byte.

    Source: cuBLAS documentation, "1D block scaling factors layout".

    >>> scales = torch.arange(250).to(torch.uint8).view(50, 5)
    >>> tiles = swizzle_128x4(scales)
    >>> tiles.shape, bool(tiles.flatten()[1 * 16 + 1 * 4 + 2] == scales[33, 2])
    (torch.Size([128, 8]), True)
    """
    expect("scales", scales_MS, Tensor, "use torch.as_tensor")
    if scales_MS.dim() != 2 or scales_MS.element_size() != 1:
        raise InputError(
            f"scales of shape {tuple(scales_MS.shape)} and dtype {scales_MS.dtype}: the 128x4 "
            "layout takes a matrix of one-byte scales"
        )
    rows, columns = scales_MS.shape
    padded = F.pad(scales_MS, (0, -columns % 4, 0, -rows % 128))
    tiles = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(padded.shape)


def unswizzle_128x4(swizzled: Tensor, num_rows: int, num_columns: int) -> Tensor:
    """Inverse of `swizzle_128x4`, cropped to `[num_rows, num_columns]`.

    Raises:
        InputError: not a matrix of one-byte scales in whole tiles, or smaller than asked for.

    >>> scales = torch.arange(250).to(torch.uint8).view(50, 5)
    >>> torch.equal(unswizzle_128x4(swizzle_128x4(scales), 50, 5), scales)
    True
    """
    expect("swizzled", swizzled, Tensor, "use torch.as_tensor")
    whole("num_rows", num_rows, 0, 2**63 - 1)
    whole("num_columns", num_columns, 0, 2**63 - 1)
    if swizzled.dim() != 2 or swizzled.element_size() != 1:
        raise InputError(
            f"swizzled scales of shape {tuple(swizzled.shape)} and dtype {swizzled.dtype}: the "
            "128x4 layout is a matrix of one-byte scales; view it as "
            f"({-(-num_rows // 128) * 128}, {-(-num_columns // 4) * 4})"
        )
    rows, columns = swizzled.shape
    if rows % 128 or columns % 4 or rows < num_rows or columns < num_columns:
        raise InputError(
            f"swizzled scales of shape {(rows, columns)} do not hold {num_rows} x {num_columns} "
            "scales in whole 128x4 tiles; give the numbers of the matrix that was swizzled"
        )
    tiles = swizzled.view(rows // 128, columns // 4, 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, columns)[:num_rows, :num_columns]
