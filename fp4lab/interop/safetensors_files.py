"""Safetensors files: headers that are checked before tensors are read, and the streaming writer.

The safetensors library refuses lengths, offsets, shapes and dtypes that do not fit the file.
Checked here besides: how long the header is, names that occur twice (JSON's last one would win),
names that no tool writes and dtypes of less than a byte. Tensors are then read from their places.
The library writes whole dictionaries; here the header is written from the known sizes alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fp4lab.errors import InputError
from fp4lab.interop.entries import DTYPES, Entry, Slot, check_name, check_shape
from fp4lab.interop.sink import Sink
from fp4lab.specs.paths import check_regular
from fp4lab.tensor.files import without_memory

#: more than a hundred thousand tensors need
LONGEST_HEADER = 32 << 20
_DAMAGED = "download or write it again"


def header(file: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors of a file, in the order of their bytes, and its metadata.

    Raises:
        InputError: not a whole safetensors file, or one that is not to be trusted.
        OSError: the file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    check_regular(file, str(file))
    changed = file.stat().st_mtime_ns
    length = _header_length(file)
    try:
        with safe_open(str(file), framework="pt"):
            pass
    except SafetensorError as error:
        raise InputError(f"{file} is not a whole safetensors file: {error}; {_DAMAGED}") from None
    except (RuntimeError, MemoryError) as error:
        raise without_memory(error, str(file)) from None
    with file.open("rb") as opened:
        text = opened.read(8 + length)[8:]
    try:
        # what the library has accepted is a table of tables, but may name one twice
        described = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} has a header that is not to be read: {error}") from None
    metadata = described.pop("__metadata__", None) or {}
    entries = [_entry(name, value, file, 8 + length, changed) for name, value in described.items()]
    return {entry.name: entry for entry in sorted(entries, key=lambda e: e.offset)}, metadata


def _header_length(file: Path) -> int:
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
    if size < 8 or length > size - 8:
        raise InputError(
            f"{file} has {size} bytes, fewer than its header announces: it is no safetensors file, "
            f"or was cut short; {_DAMAGED}"
        )
    if length > LONGEST_HEADER:
        raise InputError(
            f"{file} announces a header of {length} bytes, and {LONGEST_HEADER} are read: no model "
            "needs more, so do not trust the file"
        )
    return length


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise ValueError(f"it has {name[:80]!r} twice")
        table[name] = value
    return table


def _entry(name: str, value: Mapping[str, Any], file: Path, start: int, changed: int) -> Entry:
    check_name(name, file)
    begin, end = value["data_offsets"]
    shape = tuple(value["shape"])
    check_shape(shape, name, file)
    dtype = value["dtype"]
    if dtype not in DTYPES:
        raise InputError(
            f"{file}: {name!r} has the dtype {dtype}, which is not read here; write the file "
            "without it"
        )
    return Entry(name, dtype, shape, end - begin, file, start + begin, changed)


def sink(path: Path, slots: Iterable[Slot], metadata: Mapping[str, str]) -> Sink:
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
