"""The memory of the C operators' results: new, or that of earlier results that nobody holds.

A result has the same bits, shape and strides in either. Operands of products, which live for one
call of a layer, have that of earlier ones; of other results only measurements ask for it.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor

#: memory that nobody holds, by its bytes; taken and given back in single steps: threads share it
Pieces: TypeAlias = dict[int, list[Any]]

#: bytes from which on an operand may have the memory of an earlier one
LARGE = 1 << 22
#: bytes that are kept for operands, at the most
KEPT = 1 << 28
_kept: Pieces = {}
#: what results are written into, for measurements; the last counts
_reused: list[Pieces] = []


def new_result(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> Tensor:
    """Memory for a result, contiguous; every C operator has that of its results from here."""
    if not _reused or 0 in shape:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return _piece(_reused[-1], shape, dtype)


def new_operand(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory for an operand of a product, contiguous.

    The system gives new memory page by page as it is written, at every call of a layer, and that
    takes as long as quantizing. What operands leave is kept for the next of as many bytes, until
    more than `KEPT` bytes would be; then all of it is let go.
    """
    if _reused or not LARGE <= math.prod(shape) * dtype.itemsize <= KEPT:
        return new_result(shape, dtype)
    return _piece(_kept, shape, dtype)


def _piece(pieces: Pieces, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> Tensor:
    """A tensor in a piece, or in a new one, which goes back when no tensor shares it any more."""
    count = math.prod(shape) * dtype.itemsize
    try:
        memory = pieces[count].pop()
    except (KeyError, IndexError):
        memory = torch.empty(count, dtype=torch.uint8, device="cpu").numpy()
    holder = memory[:]
    weakref.finalize(holder, _give_back, pieces, memory).atexit = False
    return torch.frombuffer(holder, dtype=dtype).view(shape)


def _give_back(pieces: Pieces, memory: Any) -> None:
    if pieces is _kept:
        kept = sum(size * len(free) for size, free in list(pieces.items()))
        if kept + memory.nbytes > KEPT:
            pieces.clear()
    pieces.setdefault(memory.nbytes, []).append(memory)


@contextlib.contextmanager
def results_reused(pieces: Pieces | None = None) -> Iterator[Pieces]:
    """Inside, C operators write results into the memory of earlier ones that nobody holds any more.

    For measurements: the system gives out new memory page by page as it is written, which can take
    longer than an operator does.

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
