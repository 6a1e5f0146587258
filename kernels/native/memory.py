"""The memory of the C operators' results: new, or that of earlier results that nobody holds.

A result has the same bits, shape and strides in either. Operands of products, which live for one
call of a layer, have that of earlier ones; of other results only measurements ask for it.
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


#: bytes from which on an operand may have the memory of an earlier one
LARGE = 1 << 22
#: bytes that are kept for operands, at the most
KEPT = 1 << 28
#: what is kept, by its bytes; taken and given back by single steps, for threads share it
_kept: dict[int, list[Any]] = {}

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


def new_operand(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for an operand of a product, contiguous.

    The system gives new memory page by page as it is written, at every call of a layer, and that
    takes as long as quantizing. What operands leave is kept for the next of as many bytes, until
    more than `KEPT` bytes would be; then all of it is let go.
    """
    count = math.prod(shape) * dtype.itemsize
    if _reused or not LARGE <= count <= KEPT:
        return new_result(shape, dtype)
    try:
        memory = _kept[count].pop()
    except (KeyError, IndexError):
        memory = torch.empty(count, dtype=torch.uint8, device="cpu").numpy()
    holder = memory[:]
    weakref.finalize(holder, _keep, memory).atexit = False
    return torch.frombuffer(holder, dtype=dtype).view(shape)


def _keep(memory: Any) -> None:
    if sum(size * len(free) for size, free in list(_kept.items())) + memory.nbytes > KEPT:
        _kept.clear()
    _kept.setdefault(memory.nbytes, []).append(memory)


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
