"""A file of tensors whose sizes are known before any of their bytes: its header, then the bytes.

The bytes of a tensor arrive in pieces, those of several tensors in any order, and each piece is
written to its place at once, so that nothing is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from fp4lab.interop.entries import DTYPES, Slot


def slot(name: str, dtype: str, shape: tuple[int, ...]) -> Slot:
    """The place of a tensor of one of safetensors' dtypes."""
    return Slot(name, dtype, shape, math.prod(shape) * DTYPES[dtype].itemsize)


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, which is copied only where it is not contiguous."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


class Sink:
    """The open file; use it in a `with` block.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(
        self, path: Path, head: bytes | bytearray, places: Mapping[str, tuple[int, int]]
    ) -> None:
        self._path, self._head = path, head
        #: offset and bytes still to come, by tensor
        self._left = dict(places)

    def __enter__(self) -> Sink:
        with ExitStack() as stack:
            self._file = stack.enter_context(self._path.open("wb", buffering=0))
            self._pwrite(self._head, 0)
            self._stack = stack.pop_all()
        return self

    def write(self, name: str, data: bytes | memoryview) -> None:
        """The next bytes of a tensor."""
        offset, left = self._left[name]
        assert len(data) <= left
        self._pwrite(data, offset)
        self._left[name] = offset + len(data), left - len(data)

    def copy(self, name: str, chunks: Iterable[bytes]) -> None:
        """All bytes of a tensor."""
        for chunk in chunks:
            self.write(name, chunk)

    def _pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._file.seek(offset)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            unwritten = [name for name, (_, left) in self._left.items() if left]
            assert not unwritten, unwritten
            end = max((offset for offset, _ in self._left.values()), default=0)
            # also where the last tensor is empty
            self._file.truncate(max(end, len(self._head)))
        self._stack.close()
