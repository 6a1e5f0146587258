"""Rotary position embedding (RoFormer, arXiv 2104.09864, section 3.4).

Channel `i` of the first half of a head and channel `i + K/2` form a pair, turned at position `t` by
the angle `t * base**(-2 i / K)`:

    y[i]       = x[i] cos - x[i + K/2] sin
    y[i + K/2] = x[i + K/2] cos + x[i] sin

Rolling a head by K/2 swaps the halves, so with the sign folded into the sine table one turn is
`x * cos + roll(x) * sin`: three operations. The tables are made anew in every forward pass (a few
microseconds): no buffer that `to_empty` or a cast could spoil, and nothing to keep in a checkpoint.

Shape letters: B batch, T position, H head, K channel of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope_tables(
    length: int, head_dim: int, *, base: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines for positions 0 to `length - 1`: two float32 tensors [T, 1, K].

    The angle is a float32 product, so its error grows with the position as `t * 2**-23`.
    """
    pair = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    position = torch.arange(length, dtype=torch.float32, device=device)
    angle_T1P = position[:, None, None] * base ** (pair / -head_dim)
    cos_T1P, sin_T1P = angle_T1P.cos(), angle_T1P.sin()
    return torch.cat((cos_T1P, cos_T1P), -1), torch.cat((-sin_T1P, sin_T1P), -1)


def apply_rope(x_BTHK: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Turn every head by its position's angle, in float32 or wider, and return it in x's dtype."""
    cos_T1K, sin_T1K = tables
    swapped_BTHK = x_BTHK.roll(x_BTHK.shape[-1] // 2, -1)
    return torch.addcmul(x_BTHK * cos_T1K, swapped_BTHK, sin_T1K).to(x_BTHK.dtype)
