"""Random Hadamard transform of blocks along one dimension.

    y_j = (sum_k signs_k x_k H_kj) / sqrt(n),   H the Sylvester matrix of order n

The sum runs over k = 0, 1, .. in float32 and is scaled last. The order is part of the definition:
it is that of Transformer Engine's reference (a butterfly differs in the last bit of most float32
results, which moves whole FP4 steps on data with ties). The result is rounded to x's dtype, as
there, before amax is taken.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from fp4lab.errors import InputError


@cache
def matrix(size: int, signs: tuple[int, ...]) -> Tensor:
    """diag(signs) @ H in float32, entries +-1: H_kj = (-1)^(number of ones in k & j)."""
    entries = [
        [(signs[k] if signs else 1) * (-1) ** (k & j).bit_count() for j in range(size)]
        for k in range(size)
    ]
    # on the CPU whatever the default device: this is kept
    return torch.tensor(entries, dtype=torch.float32, device="cpu")


def hadamard(x: Tensor, size: int, signs: tuple[int, ...] | list[int], dim: int = -1) -> Tensor:
    """Transform every block of `size` along `dim` (the inverse of one without signs is itself).

    Args:
        x: any shape, fp16, bf16, fp32 or fp64 (computed in float32); its extent along `dim` a
            multiple of size.
        size: block length, a power of two.
        signs: `size` entries +-1, or empty for none.
        dim: where the blocks lie.

    Returns:
        the transform, rounded to x's dtype.

    Raises:
        InputError: the extent is not a multiple of size.
    """
    if x.shape[dim] % size:
        raise InputError(
            f"extent {x.shape[dim]} of dimension {dim} is not a multiple of the Hadamard size "
            f"{size}; choose a size that divides it"
        )
    # k first, so that each term is one pass over long rows
    blocks = x.to(torch.float32).unflatten(dim, (-1, size)).movedim(dim % x.dim() + 1, 0)
    x_kN = blocks.reshape(size, -1)
    matrix_kj1 = matrix(size, tuple(signs)).to(x.device).unsqueeze(2)
    y_jN = torch.zeros_like(x_kN)
    for k in range(size):
        y_jN.addcmul_(matrix_kj1[k], x_kN[k])
    y = y_jN.mul_(size**-0.5).view(blocks.shape).movedim(0, dim % x.dim() + 1)
    return y.reshape(x.shape).to(x.dtype)
