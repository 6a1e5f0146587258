"""Quantized tensors in safetensors files, without pickle."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fp4lab import formats
from fp4lab.errors import InputError, expect, unknown
from fp4lab.formats import BlockFormat, Direction, Hadamard
from fp4lab.specs.files import replacing
from fp4lab.specs.paths import as_path, check_regular
from fp4lab.specs.plain import from_plain, to_plain
from fp4lab.tensor.quantized import QuantizedTensor

#: version of the metadata in a file; `amax`: a tensor stores its amax where it names no direction
FILE_CONVENTION = "fp4lab-1-amax"
#: a tensor of so many values would be larger than any disk
MOST_VALUES = 1 << 48
_NO_MEMORY = re.compile("unable to mmap|can't allocate memory")
_DIRECTIONS = {direction.name.lower(): direction for direction in Direction}


def save(tensors: Mapping[str, QuantizedTensor | Tensor], path: str | Path) -> None:
    """Write tensors to one safetensors file, in place of an older one only when it is complete.

    Quantized tensors become `<name>.codes`, `<name>.scales` and `<name>.amax` (`.encode_scale`,
    `.decode_scale` where the format stores that), with format, shape, axis, transform and direction
    in the metadata; others are stored as they are. Tensors that share memory are stored once for
    each name.

    Raises:
        InputError: a value that is no dense tensor with values, or two tensors that would get the
            same name.
        OSError: the file cannot be written.

    >>> import fp4lab
    >>> w = fp4lab.quantize(torch.ones(16, 32), formats.NVFP4)
    >>> save({"w": w, "bias": torch.zeros(16)}, "layer.safetensors")
    >>> load("layer.safetensors")["w"].equal(w)
    True
    """
    expect("tensors", tensors, Mapping, "give a dictionary, such as {'weight': q}")
    target = as_path("path", path)
    flat: dict[str, Tensor] = {}
    described: dict[str, dict[str, object]] = {}
    for name, tensor in tensors.items():
        check_savable(name, tensor)
        if isinstance(tensor, QuantizedTensor):
            for part, value in zip(stored_names(tensor.format), tensor.parts(), strict=True):
                _add(flat, f"{name}.{part}", value)
            described[name] = description(
                tensor.format, tensor.shape, axis=tensor.axis, transform=tensor.transform
            )
        else:
            _add(flat, name, tensor)
    metadata = {"convention": FILE_CONVENTION, "quantized": json.dumps(described)}
    with replacing(target) as temporary:
        write_file(temporary, _unshared(flat), metadata)


def stored_names(fmt: BlockFormat) -> tuple[str, str, str]:
    """Names of the parts in a file: that of the tensor scale says which number it is."""
    return "codes", "scales", fmt.direction.part


def description(
    fmt: BlockFormat, shape: Sequence[int], *, axis: int = -1, transform: str = ""
) -> dict[str, object]:
    """What the metadata of a file says of a quantized tensor."""
    described: dict[str, object] = {"format": to_plain(fmt), "shape": list(shape), "axis": axis}
    if transform:
        described["hadamard"] = transform
    if fmt.direction != Direction.AMAX:
        described["direction"] = fmt.direction.name.lower()
    return described


def write_file(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """One safetensors file; OSError where it cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, str(path), metadata=metadata)
    except SafetensorError as error:
        # safetensors hides the operating system's error in a text of its own
        match = re.search(r"os error (\d+)", str(error))
        number = int(match[1]) if match else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from None


def check_savable(name: object, value: object) -> None:
    """InputError for a name, or a value with this name, that no file holds."""
    if not isinstance(name, str):
        raise InputError(f"tensors has the name {name!r}, which is no text; rename it")
    if name == "__metadata__":
        raise InputError("tensors has the name '__metadata__', which safetensors keeps; rename it")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"tensors has the name {name!r}, which is no UTF-8; rename it") from None
    if isinstance(value, QuantizedTensor):
        value = value.codes
    if not isinstance(value, Tensor):
        raise InputError(
            f"tensors[{name!r}] is a {type(value).__name__}; give QuantizedTensor and Tensor"
        )
    if value.layout != torch.strided or value.device.type == "meta":
        raise InputError(f"tensors[{name!r}] is sparse or on the meta device; make it dense first")


def _add(flat: dict[str, Tensor], name: str, value: Tensor) -> None:
    if name in flat:
        raise InputError(f"tensors has two entries that are stored as {name!r}; rename one")
    flat[name] = value.detach().resolve_conj().resolve_neg().contiguous()


def _unshared(flat: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the tensors that share memory with an earlier one, which safetensors refuses."""
    unshared, seen = {}, set()
    for name, value in flat.items():
        storage = value.untyped_storage().data_ptr()
        unshared[name] = value.clone() if storage in seen else value
        seen.add(storage)
    return unshared


def load(path: str | Path) -> dict[str, QuantizedTensor | Tensor]:
    """Read what `save` wrote, onto the CPU.

    Raises:
        InputError: not a safetensors file, another convention, a direction that is not the
            format's, or a missing or misshapen part (its key is named).
        OSError: the file cannot be read.

    >>> import fp4lab
    >>> save({"w": fp4lab.quantize(torch.ones(16, 32), formats.MXFP8_E4M3)}, "w.safetensors")
    >>> load("w.safetensors")
    {'w': QuantizedTensor(mxfp8_e4m3 16x32, 8.25 bits a value, cpu)}
    """
    from safetensors import SafetensorError, safe_open

    check_regular(as_path("path", path), f"path={str(path)!r}")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"path={str(path)!r} is not a whole safetensors file: {error}") from None
    except (RuntimeError, MemoryError) as error:
        raise without_memory(error, f"path={str(path)!r}") from None
    convention = metadata.get("convention")
    if convention != FILE_CONVENTION:
        raise InputError(
            f"path={str(path)!r} has the convention {convention!r}, not {FILE_CONVENTION!r}; "
            "scales of another tool mean something else, convert the file first"
        )
    tensors: dict[str, QuantizedTensor | Tensor] = {}
    for name, described in read_descriptions(metadata, path).items():
        fmt = described_format(name, described)
        try:
            parts = [flat.pop(f"{name}.{part}") for part in stored_names(fmt)]
        except KeyError as error:
            raise InputError(f"path={str(path)!r} lacks the tensor {error}") from None
        tensors[name] = restored(name, parts, fmt, described)
    return tensors | flat


def without_memory(error: RuntimeError | MemoryError, what: str) -> Exception:
    """The InputError of what there is no memory for; another error as it is."""
    # torch has no error of its own for this
    if isinstance(error, RuntimeError) and not _NO_MEMORY.search(str(error)):
        return error
    return InputError(f"{what} needs more memory than there is; use a machine with more")


def read_descriptions(metadata: Mapping[str, str], path: str | Path) -> dict[str, Any]:
    """The descriptions of a file's quantized tensors; InputError where they cannot be read."""
    try:
        described = json.loads(metadata["quantized"])
    except (KeyError, ValueError, RecursionError) as error:
        raise InputError(f"path={str(path)!r} has no readable 'quantized': {error!r}") from None
    if not isinstance(described, dict):
        raise InputError(f"path={str(path)!r}: 'quantized' in its metadata is not a table")
    return described


def described_format(name: str, described: Any) -> BlockFormat:
    """The format of a description, whose direction must be the one that is described."""
    keys = {"format", "shape", "axis"}
    if not isinstance(described, dict) or set(described) - {"hadamard", "direction"} != keys:
        raise InputError(f"description of {name!r} does not have the keys {sorted(keys)}")
    fmt = from_plain(BlockFormat, described["format"], path=f"{name}.format", by_name=_by_name)
    said = described.get("direction", "amax")
    if not isinstance(said, str) or said not in _DIRECTIONS:
        raise unknown(f"{name}.direction", said, _DIRECTIONS)
    if _DIRECTIONS[said] != fmt.direction:
        raise InputError(
            f"{name}.direction={said!r}: the format {fmt.name!r} stores its "
            f"{fmt.direction.words}; the file was changed, convert the number and name it so"
        )
    return fmt


def described_shape(name: str, described: Mapping[str, Any]) -> tuple[int, ...]:
    """The sizes of a description; InputError for what no tensor has."""
    sizes = described["shape"]
    if not isinstance(sizes, list) or not all(type(n) is int and n >= 0 for n in sizes):
        raise InputError(f"shape={str(sizes)[:80]} of {name!r} is not a list of sizes")
    if math.prod(max(size, 1) for size in sizes) > MOST_VALUES:
        raise InputError(f"shape={str(sizes)[:80]} of {name!r} is beyond that of any tensor")
    return tuple(sizes)


def restored(
    name: str, parts: Sequence[Tensor], fmt: BlockFormat, described: Mapping[str, Any]
) -> QuantizedTensor:
    """The tensor of parts and their description; InputError where they do not belong together."""
    sizes, axis = described_shape(name, described), described["axis"]
    try:
        transform = _transform(described.get("hadamard"))
        codes, scales, tensor_scale = parts
        return QuantizedTensor(codes, scales, tensor_scale, fmt, torch.Size(sizes), axis, transform)
    except InputError as error:
        raise InputError(f"{name}.{error}") from None


def _transform(text: object) -> Hadamard | None:
    if text is None:
        return None
    try:
        return Hadamard.from_definition(str(text))
    except ValueError:
        raise InputError(
            f"hadamard={text!r} is no size with signs, such as '16' or '4++-+'"
        ) from None


def _by_name(kind: type, name: str) -> object:
    return formats.get(name) if kind is BlockFormat else formats.get_element(name)
