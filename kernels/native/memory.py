"""The memory of the C operators' results: new, or for measurements that of earlier results.

A result has the same bits, shape and strides in either.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor


@dataclass
class _Piece:
    """Memory that results are written into, one after another."""

    memory: Any
    #: dies with the last tensor that shares the memory
    holder: weakref.ref[Any]


#: pieces by their bytes
Pieces: TypeAlias = dict[int, list[_Piece]]
_reused: list[Pieces] = []


def new_result(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> Tensor:
    """Memory for a result, contiguous; every C operator has that of its results from here."""
    if not _reused or 0 in shape:
        return torch.empty(shape, dtype=dtype, device="cpu")
    count = math.prod(shape) * dtype.itemsize
    pieces = _reused[-1].setdefault(count, [])
    free = next((piece for piece in pieces if piece.holder() is None), None)
    if free is None:
        memory = torch.empty(count, dtype=torch.uint8, device="cpu").numpy()
        free = _Piece(memory, weakref.ref(memory))
        pieces.append(free)
    holder = free.memory[:]
    free.holder = weakref.ref(holder)
    return torch.frombuffer(holder, dtype=dtype).view(shape)


@contextlib.contextmanager
def results_reused(pieces: Pieces | None = None) -> Iterator[Pieces]:
    """Inside, C operators write results into the memory of earlier ones that nobody holds any more.

    For measurements: the system gives out new memory page by page as it is written, which can take
    longer than an operator does. One thread of Python may call operators inside, for all threads of
    the process get their results from the same pieces.

    Args:
        pieces: what an earlier block yielded, to go on with; by default the first results are new.

    >>> with results_reused():
    ...     first = new_result((64, 64), torch.float32).data_ptr()
    ...     first == new_result((64, 64), torch.float32).data_ptr()
    True
    """
    _reused.append({} if pieces is None else pieces)
    try:
        yield _reused[-1]
    finally:
        _reused.pop()
