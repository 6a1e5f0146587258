"""Random Hadamard transform of blocks along one dimension.

    y_j = (sum_k signs_k x_k H_kj) / sqrt(n),   H the Sylvester matrix of order n

The sum runs over k = 0, 1, .. in float32 and is scaled last. The order is part of the definition:
it is that of Transformer Engine's reference (a butterfly differs in the last bit of most float32
results, which moves whole FP4 steps on data with ties). The result is rounded to x's dtype, as
there, before amax is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from fp4lab.errors import InputError
from fp4lab.formats import Hadamard

#: largest transform whose matrix is kept (64 MB)
LARGEST_KEPT = 4096


def row(size: int, k: int) -> Tensor:
    """Row k of H in float32: H_kj = (-1)^(number of ones in k & j)."""
    # on the CPU whatever the default device: rows are kept
    h_j = torch.ones(1, dtype=torch.float32, device="cpu")
    while len(h_j) < size:
        h_j = torch.cat((h_j, -h_j if k & len(h_j) else h_j))
    return h_j


@lru_cache(maxsize=64)
def matrix(transform: Hadamard) -> Tensor:
    """diag(signs) @ H in float32, entries +-1."""
    return torch.stack(list(_rows(transform)))


def _rows(transform: Hadamard) -> Iterator[Tensor]:
    size, signs = transform.size, transform.vector
    for k in range(size):
        yield row(size, k) * signs[k] if signs else row(size, k)


def check_extent(x: Tensor, transform: Hadamard, dim: int) -> None:
    """InputError unless the extent of x along `dim` is a multiple of the transform's size."""
    if x.shape[dim] % transform.size:
        raise InputError(
            f"extent {x.shape[dim]} of dimension {dim} is not a multiple of the Hadamard size "
            f"{transform.size}; choose a size that divides it"
        )


def hadamard(x: Tensor, transform: Hadamard, dim: int = -1) -> Tensor:
    """Transform every block along `dim` (the inverse of one without signs is itself).

    Args:
        x: any shape, fp16, bf16, fp32 or fp64 (computed in float32); its extent along `dim` a
            multiple of the transform's size.
        transform: size of a block, and signs.
        dim: where the blocks lie.

    Returns:
        the transform, rounded to x's dtype.

    Raises:
        InputError: the extent is not a multiple of size.
    """
    check_extent(x, transform, dim)
    size = transform.size
    # k first, so that each term is one pass over long rows
    blocks = x.to(torch.float32).unflatten(dim, (-1, size)).movedim(dim % x.dim() + 1, 0)
    x_kN = blocks.reshape(size, -1)
    rows = matrix(transform) if size <= LARGEST_KEPT else _rows(transform)
    y_jN = torch.zeros_like(x_kN)
    for h_j, x_N in zip(rows, x_kN, strict=True):
        y_jN.addcmul_(h_j.to(x.device).unsqueeze(1), x_N)
    y = y_jN.mul_(size**-0.5).view(blocks.shape).movedim(0, dim % x.dim() + 1)
    return y.reshape(x.shape).to(x.dtype)
