"""A tensor in a file, before anything of it is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fp4lab.errors import InputError
from fp4lab.tensor.files import MOST_VALUES

#: bytes that are copied at once
CHUNK = 1 << 22

#: safetensors' names of the dtypes that torch has too, with torch's
DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
#: what can be quantized
FLOATS = ("F16", "BF16", "F32", "F64")


@dataclass(frozen=True)
class Entry:
    """One tensor of a file.

    Attributes:
        name: its name in the file.
        dtype: safetensors' name of its dtype, or ggml's where safetensors has none ("Q4_1").
        shape: sizes, the last one contiguous.
        file: where it is.
        offset: of its first byte in the file.
        nbytes: what it takes there.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int

    @property
    def has_values(self) -> bool:
        """Whether it holds floats, or what ggml has made of them ("Q4_0", "TQ1_0", "IQ2_S")."""
        return self.dtype in FLOATS or self.dtype.startswith(("Q", "TQ", "IQ"))

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, a few MiB at a time."""
        with self.file.open("rb") as file:
            file.seek(self.offset)
            left = self.nbytes
            while left:
                chunk = file.read(min(CHUNK, left))
                if not chunk:
                    raise InputError(
                        f"{self.file} ended within {self.name!r}: it was cut short while it was "
                        "read; give the whole file"
                    )
                left -= len(chunk)
                yield chunk


def check_shape(shape: tuple[int, ...], name: str, file: Path) -> None:
    """InputError for sizes beyond those of any tensor, also where one of them is 0."""
    if math.prod(max(size, 1) for size in shape) > MOST_VALUES:
        raise InputError(
            f"{file}: the tensor {name[:80]!r} has sizes beyond those of any tensor; do not trust "
            "the file"
        )


def misleads(name: str) -> bool:
    """Whether a name is empty, has control characters, or the form of a path out of a folder."""
    parts = name.split("/")
    return not name or not name.isprintable() or "\\" in name or ".." in parts or name[0] == "/"


def check_name(name: str, file: Path) -> None:
    """InputError for a name that would mislead where it is shown, or reach out of a folder."""
    if misleads(name):
        raise InputError(
            f"{file}: the tensor name {name[:80]!r} is empty, or has control characters or the "
            "form of a path; no tool writes such names, so do not trust the file"
        )
