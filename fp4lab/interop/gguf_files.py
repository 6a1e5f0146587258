"""GGUF files: headers, of which nothing is trusted, and the streaming writer.

The gguf package builds an array for every word of the vocabulary and takes each count for true; so
the header is walked here, within bounds, and metadata stays the bytes it is: it is copied from file
to file and only a few numbers of it matter here. Left out: big-endian files and version 1.

Source: the GGUF specification, version 3.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fp4lab.errors import InputError
from fp4lab.interop.entries import Entry, Slot, check_name, check_shape
from fp4lab.interop.sink import Sink
from fp4lab.specs.paths import check_regular

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
#: bounds that real files keep far below: bytes of the header, tensors, metadata
LONGEST_HEADER = 64 << 20
MOST_TENSORS = 1 << 20
MOST_KEYS = 1 << 16
DIMENSIONS = 4
DEEPEST = 4
UINT32, STRING, ARRAY = 4, 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

#: ggml's types by number: name here, values in a block, bytes of a block
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}
NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}


@dataclass(frozen=True)
class Key:
    """A piece of metadata: its type and value as the bytes of the file."""

    kind: int
    value: bytes


@dataclass(frozen=True)
class Header:
    """What stands before the tensors' bytes."""

    keys: dict[str, Key]
    entries: dict[str, Entry]

    def number(self, key: str, otherwise: int) -> int:
        """A uint32 of the metadata."""
        found = self.keys.get(key)
        if found is None or found.kind != UINT32:
            return otherwise
        return int.from_bytes(found.value, "little")


def uint32(value: int) -> Key:
    """Metadata that holds one number."""
    return Key(UINT32, value.to_bytes(4, "little"))


def string(text: str) -> Key:
    """Metadata that holds a text."""
    return Key(STRING, packed(text))


def packed(text: str) -> bytes:
    """A text with its length."""
    data = text.encode()
    return len(data).to_bytes(8, "little") + data


def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """What a tensor takes in a GGUF file."""
    _, block, size = TYPES[NUMBERS[dtype]]
    return math.prod(shape) // block * size


def header(file: Path) -> Header:
    """The metadata and tensors of a file.

    Raises:
        InputError: no GGUF file of version 2 or 3, cut short, or not to be trusted.
        OSError: the file cannot be read.
    """
    check_regular(file, str(file))
    with file.open("rb") as opened:
        if opened.read(4) != MAGIC:
            raise InputError(f"{file} does not begin with GGUF: it is no such file; give another")
        size = os.fstat(opened.fileno()).st_size
        mapped = min(size, LONGEST_HEADER)
        with mmap.mmap(opened.fileno(), mapped, access=mmap.ACCESS_READ) as data:
            return _Walk(data, file, size, os.fstat(opened.fileno()).st_mtime_ns).header()


class _Walk:
    """Reads a header from its beginning; every step is checked against the end of the file."""

    def __init__(self, data: mmap.mmap, file: Path, size: int, changed: int) -> None:
        self.data, self.file, self.size, self.at = data, file, size, 4
        self.end = len(data)
        self.changed = changed

    def header(self) -> Header:
        version = self.number(4)
        if version not in VERSIONS:
            raise InputError(
                f"{self.file} has GGUF version {version}; 2 and 3, little-endian, are read: "
                "convert it with the tool it comes from"
            )
        num_tensors, num_keys = self.number(8), self.number(8)
        if num_tensors > MOST_TENSORS or num_keys > MOST_KEYS:
            raise self.bad(f"announces {num_tensors} tensors and {num_keys} pieces of metadata")
        keys: dict[str, Key] = {}
        for _ in range(num_keys):
            name, kind = self.text(), self.number(4)
            begin = self.at
            self.skip_value(kind, 0)
            if name in keys:
                raise self.bad(f"has {name[:80]!r} twice")
            keys[name] = Key(kind, self.data[begin : self.at])
        described = [self.tensor() for _ in range(num_tensors)]
        return Header(keys, self.placed(described, Header(keys, {})))

    def placed(
        self, described: list[tuple[str, str, tuple[int, ...], int, int]], keys: Header
    ) -> dict[str, Entry]:
        """The tensors with their places in the file."""
        alignment = keys.number("general.alignment", ALIGNMENT)
        if not 1 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise self.bad(f"has the alignment {alignment}, which is no power of two up to 65536")
        start = -(-self.at // alignment) * alignment
        entries: dict[str, Entry] = {}
        reached = 0
        for name, dtype, shape, offset, nbytes in sorted(described, key=lambda one: one[3]):
            if name in entries:
                raise self.bad(f"has the tensor {name[:80]!r} twice")
            if start + offset + nbytes > self.size:
                raise self.bad(f"ends before its tensor {name!r} does")
            if offset < reached or offset % alignment:
                raise self.bad(f"has {name!r} at {offset}, where no tensor can begin")
            reached = offset + nbytes
            entries[name] = Entry(
                name, dtype, shape, nbytes, self.file, start + offset, self.changed
            )
        return entries

    def tensor(self) -> tuple[str, str, tuple[int, ...], int, int]:
        name, num_sizes = self.text(), self.number(4)
        check_name(name, self.file)
        if not 0 <= num_sizes <= DIMENSIONS:
            raise self.bad(f"has {name!r} of {num_sizes} dimensions")
        shape = tuple(self.number(8) for _ in range(num_sizes))[::-1]
        check_shape(shape, name, self.file)
        number, offset = self.number(4), self.number(8)
        if number not in TYPES:
            raise InputError(
                f"{self.file}: {name!r} is of ggml's type {number}, which is not read here; "
                "convert the file with llama.cpp"
            )
        dtype, block, size = TYPES[number]
        columns = shape[-1] if shape else 1
        if columns % block:
            raise self.bad(
                f"has {columns} columns in {name!r}, and {dtype} needs blocks of {block}"
            )
        return name, dtype, shape, offset, math.prod(shape) // block * size

    def skip_value(self, kind: int, depth: int) -> None:
        if kind in _SIZES:
            self.take(_SIZES[kind])
        elif kind == STRING:
            self.take(self.number(8))
        elif kind == ARRAY and depth < DEEPEST:
            inner, count = self.number(4), self.number(8)
            if inner in _SIZES:
                self.take(count * _SIZES[inner])
                return
            # each element takes 8 bytes or more, so this ends with the file
            for _ in range(count):
                self.skip_value(inner, depth + 1)
        else:
            raise self.bad(f"has metadata of the unknown type {kind}")

    def text(self) -> str:
        begin, length = self.at + 8, self.number(8)
        self.take(length)
        try:
            return self.data[begin : self.at].decode()
        except UnicodeDecodeError:
            raise self.bad("has a name that is no UTF-8") from None

    def number(self, width: int) -> int:
        begin = self.at
        self.take(width)
        (value,) = struct.unpack_from("<I" if width == 4 else "<Q", self.data, begin)
        return int(value)

    def take(self, nbytes: int) -> None:
        if self.at + nbytes > self.end:
            raise self.bad("ends within its header")
        self.at += nbytes

    def bad(self, what: str) -> InputError:
        return InputError(f"{self.file} {what}: it is damaged, or not to be trusted; give another")


def sink(path: Path, slots: Iterable[Slot], keys: Mapping[str, Key]) -> Sink:
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
