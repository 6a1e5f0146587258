"""ggml's blocks of MXFP4 and NVFP4, to and from codes and scales; no bit of either changes.

    MXFP4  32 values  1 byte E8M0, then 16 bytes: byte j has value j in its low nibble, j+16 above
    NVFP4  64 values  4 bytes E4M3 for 16 values each, then 8 bytes for each 16, halved likewise

Rows hold whole blocks. M: rows, K: values of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: by ggml's name: values that share a scale, scales in a block
SIDES = {"MXFP4": (32, 1), "NVFP4": (16, 4)}


def block_side(dtype: str) -> int:
    """Values in a block of ggml."""
    side, num_scales = SIDES[dtype]
    return side * num_scales


def to_blocks(codes: Tensor, scales_MS: Tensor, dtype: str) -> Tensor:
    """Packed codes `[M, K/2]` and scales `[M, S]` as bytes `[M, K / block * bytes]`."""
    side, num_scales = SIDES[dtype]
    num_rows = codes.shape[0]
    pairs = codes.reshape(num_rows, -1, side // 2)
    nibbles = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
    halves = nibbles[..., : side // 2] | (nibbles[..., side // 2 :] << 4)
    head = scales_MS.reshape(num_rows, -1, num_scales)
    body = halves.reshape(num_rows, head.shape[1], -1)
    return torch.cat((head, body), dim=-1).reshape(num_rows, -1)


def from_blocks(blocks: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """Inverse of `to_blocks`."""
    side, num_scales = SIDES[dtype]
    num_rows = blocks.shape[0]
    whole = blocks.reshape(num_rows, -1, num_scales * (1 + side // 2))
    scales = whole[..., :num_scales].reshape(num_rows, -1)
    halves = whole[..., num_scales:].reshape(num_rows, -1, side // 2)
    nibbles = torch.cat((halves & 15, halves >> 4), dim=-1)
    return (nibbles[..., ::2] | (nibbles[..., 1::2] << 4)).reshape(num_rows, -1), scales
