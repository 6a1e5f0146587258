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
def matrix(size: int, signs: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Rows k of diag(signs) @ H, entries +-1: H_kj = (-1)^(number of ones in k & j)."""
    return tuple(
        tuple((signs[k] if signs else 1) * (-1) ** (k & j).bit_count() for j in range(size))
        for k in range(size)
    )


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
    front = x.movedim(dim, 0)
    x_AkB = front.to(torch.float32).reshape(front.shape[0] // size, size, front[:1].numel())
    rows = torch.tensor(matrix(size, tuple(signs)), dtype=torch.float32, device=x.device)
    y_AjB = torch.zeros_like(x_AkB)
    for k in range(size):
        y_AjB.addcmul_(x_AkB[:, k : k + 1], rows[k].view(1, size, 1))
    y_AjB.mul_(torch.tensor(float(size), device=x.device).rsqrt())
    return y_AjB.view(front.shape).movedim(0, dim).to(x.dtype)
