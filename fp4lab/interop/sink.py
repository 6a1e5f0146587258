"""A file of tensors whose sizes are known before any of their bytes: its header, then the bytes.

The bytes of a tensor arrive in pieces, those of several tensors in any order, and each piece is
written to its place at once, so that nothing is kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from fp4lab.interop import gguf_header
from fp4lab.interop.entries import DTYPES
from fp4lab.interop.gguf_header import ALIGNMENT, MAGIC, NUMBERS, TYPES, Key, packed, uint32


@dataclass(frozen=True)
class Slot:
    """A tensor of the file that is to be written; `dtype` as in `Entry`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


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


def safetensors_sink(path: Path, slots: Iterable[Slot], metadata: Mapping[str, str]) -> Sink:
    """A safetensors file, ordered as that library orders them: wide dtypes first, then by name."""
    ordered = sorted(slots, key=lambda one: (-DTYPES[one.dtype].itemsize, one.name))
    table: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    places: dict[str, tuple[int, int]] = {}
    at = 0
    for one in ordered:
        table[one.name] = {
            "dtype": one.dtype,
            "shape": one.shape,
            "data_offsets": [at, at + one.nbytes],
        }
        places[one.name] = at, one.nbytes
        at += one.nbytes
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    head = len(text).to_bytes(8, "little") + text
    return Sink(path, head, {name: (start + at, size) for name, (at, size) in places.items()})


def gguf_sink(path: Path, slots: Iterable[Slot], keys: Mapping[str, Key]) -> Sink:
    """A GGUF file of version 3; metadata is written as the bytes that it is."""
    ordered = list(slots)
    keys = {**keys, "general.alignment": uint32(ALIGNMENT)}
    counts = (len(ordered), len(keys))
    head = bytearray(MAGIC + (3).to_bytes(4, "little"))
    head += b"".join(n.to_bytes(8, "little") for n in counts)
    for name, key in keys.items():
        head += packed(name) + key.kind.to_bytes(4, "little") + key.value
    places: dict[str, tuple[int, int]] = {}
    at = 0
    for one in ordered:
        sizes = one.shape[::-1]
        head += packed(one.name) + len(sizes).to_bytes(4, "little")
        head += b"".join(size.to_bytes(8, "little") for size in sizes)
        head += NUMBERS[one.dtype].to_bytes(4, "little") + at.to_bytes(8, "little")
        places[one.name] = at, one.nbytes
        at += -(-one.nbytes // ALIGNMENT) * ALIGNMENT
    head += bytes(-len(head) % ALIGNMENT)
    return Sink(path, head, {name: (len(head) + at, size) for name, (at, size) in places.items()})


def gguf_nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """What a tensor takes in a GGUF file."""
    _, block, size = TYPES[gguf_header.NUMBERS[dtype]]
    return math.prod(shape) // block * size
