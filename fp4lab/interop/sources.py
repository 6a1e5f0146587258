"""What is read: a safetensors file, a folder of Hugging Face, or a GGUF file, tensor by tensor."""

from __future__ import annotations

import json
import mmap
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fp4lab.errors import InputError, optional
from fp4lab.interop import gguf_files, safetensors_files
from fp4lab.interop.entries import DTYPES, Entry
from fp4lab.interop.gguf_files import NUMBERS, Key
from fp4lab.specs.paths import as_path, check_regular
from fp4lab.tensor.files import without_memory

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
#: the key of a GGUF file that was written here
STAMP = "fp4lab.version"
#: what a configuration says of the weights' layout
KEY = "quantization_config"
#: names of files that are unpickled by those who read them
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
#: more than any configuration or index of a model takes
LARGEST_JSON = 64 << 20


@dataclass(frozen=True)
class Source:
    """Tensors that can be read.

    Attributes:
        path: the file or folder that was given.
        entries: its tensors by name.
        folder: the folder of a model, whose other files go with the weights.
        config: what config.json says, empty where there is none.
        metadata: of the safetensors files.
        keys: metadata of a GGUF file; None for others.
    """

    path: Path
    entries: Mapping[str, Entry]
    folder: Path | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Key] | None = None

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file."""
        return self.keys is not None

    @property
    def is_ours(self) -> bool:
        """Whether the files say that they were written here."""
        return "fp4lab" in self.metadata or STAMP in (self.keys or {})

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.nbytes for entry in self.entries.values())

    def tensor(self, entry: Entry) -> Tensor:
        """A tensor's values; ggml's blocks as float32.

        Raises:
            InputError: the file was cut short, the gguf package is needed and missing, or there is
                no memory for the tensor.
        """
        try:
            return self._tensor(entry)
        except (RuntimeError, MemoryError) as error:
            what = f"{entry.file}: {entry.name!r} of {entry.nbytes} bytes"
            raise without_memory(error, what) from None

    def _tensor(self, entry: Entry) -> Tensor:
        if entry.dtype in DTYPES:
            return raw(entry).view(DTYPES[entry.dtype]).reshape(entry.shape)
        return _dequantized(entry) if entry.nbytes else torch.empty(entry.shape)


def raw(entry: Entry) -> Tensor:
    """The bytes of a tensor, uint8 `[nbytes]`."""
    if not entry.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    # pages of its own go back to the system at once: a heap keeps what lies between two tensors
    try:
        pages = mmap.mmap(-1, entry.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(str(error)) from None
    data = torch.frombuffer(pages, dtype=torch.uint8)
    view = data.numpy().data
    for chunk in entry.chunks():
        view[: len(chunk)] = chunk
        view = view[len(chunk) :]
    return data


def _dequantized(entry: Entry) -> Tensor:
    what = f"path={str(entry.file)!r} with {entry.dtype} blocks in {entry.name!r}"
    quants = optional("gguf.quants", argument=what, package="gguf")
    kind = quants.GGMLQuantizationType(NUMBERS[entry.dtype])
    blocks = raw(entry).reshape(*entry.shape[:-1], -1).numpy()
    try:
        with warnings.catch_warnings():
            # damaged scales overflow; what they give is shown as what it is
            warnings.simplefilter("ignore", RuntimeWarning)
            values: Tensor = torch.from_numpy(quants.dequantize(blocks, kind))
    except NotImplementedError:
        raise InputError(
            f"{entry.name!r} holds {entry.dtype}, which the gguf package does not decode; "
            "requantize the file with llama.cpp to F16 first"
        ) from None
    return values.reshape(entry.shape)


def open_source(path: str | Path, *, argument: str = "path") -> Source:
    """Open what lies at a path, of which only the headers are read.

    Raises:
        InputError: nothing is there, it is no file or folder of weights, or one not to be trusted.
        OSError: it cannot be read.
    """
    path = as_path(argument, path)
    shown = f"{argument}={str(path)!r}"
    if path.is_dir():
        return _folder(path, shown)
    if not path.exists():
        raise InputError(f"{shown} is neither a file nor a folder; give a path that exists")
    check_regular(path, shown)
    if path.suffix in PICKLED:
        raise InputError(f"{shown}: {_PICKLE}")
    with path.open("rb") as file:
        start = file.read(4)
    if start == gguf_files.MAGIC:
        head = gguf_files.header(path)
        if "split.count" in head.keys and head.keys["split.count"].value[:2] not in (
            b"\0\0",
            b"\1\0",
        ):
            raise InputError(
                f"{shown} is one part of a split GGUF; merge it with llama-gguf-split --merge first"
            )
        return Source(path, head.entries, keys=head.keys)
    if path.suffix == ".gguf":
        raise InputError(f"{shown} does not begin with GGUF: it is no such file; give another")
    if start[:2] == b"PK" or (start[:1] == b"\x80" and path.suffix != ".safetensors"):
        raise InputError(f"{shown}: {_PICKLE}")
    entries, metadata = safetensors_files.header(path)
    return Source(path, entries, metadata=metadata, config=_config_beside(path))


_PICKLE = (
    "pickled weights are not read, for reading them runs code from the file; save them as "
    "safetensors with the tool that wrote them"
)


def _config_beside(path: Path) -> Mapping[str, Any]:
    """The configuration of the model whose weights a file holds: it may name their layout."""
    config = path.with_name(CONFIG)
    return _read_config(config) if path.name == "model.safetensors" and config.exists() else {}


def _read_config(path: Path) -> Mapping[str, Any]:
    config = read_json(path)
    check_config(config, str(path))
    return config


def check_config(config: Mapping[str, Any], shown: str) -> None:
    """InputError where what a configuration says of the model is not of the kind that it has."""
    names = config.get("architectures")
    lists_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    for key, right, kind in (
        ("architectures", names is None or lists_names, "a list of names"),
        ("model_type", isinstance(config.get("model_type"), str | None), "a name"),
        ("quantization_config", isinstance(config.get(KEY), dict | None), "a table"),
    ):
        if not right:
            raise InputError(f"{shown} has {key}={str(config[key])[:80]!r}, not {kind}; repair it")


def _folder(folder: Path, shown: str) -> Source:
    index = folder / INDEX
    files = sorted(folder.glob("*.safetensors"))
    if index.exists():
        entries, metadata = _indexed(index)
        own = folder / "model.safetensors"
        if own.is_file() and any(entry.file != own for entry in entries.values()):
            raise InputError(
                f"{shown} has model.safetensors, and {INDEX} names other files; loaders differ in "
                "which they take: delete one of the two"
            )
    else:
        whole = [file for file in files if file.name == "model.safetensors"] or files
        if not whole:
            raise InputError(f"{shown} {_nothing(folder)}")
        if len(whole) > 1:
            names = ", ".join(file.name for file in whole[:3])
            raise InputError(
                f"{shown} has several files ({names}) and no {INDEX}; give one of them"
            )
        entries, metadata = safetensors_files.header(whole[0])
    config = folder / CONFIG
    read = _read_config(config) if config.exists() else {}
    return Source(folder, entries, folder=folder, config=read, metadata=metadata)


def _nothing(folder: Path) -> str:
    pickled = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLED)
    if pickled:
        return f"has {pickled[0]} and no safetensors; {_PICKLE}"
    gguf = sorted(folder.glob("*.gguf"))
    if gguf:
        return f"has no safetensors; give the file {gguf[0].name} itself"
    return "has no safetensors files; give a folder of a model, or a file"


def _indexed(index: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors of a model in several files."""
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise InputError(f"{index} has no table 'weight_map' of file names; write it again")
    entries: dict[str, Entry] = {}
    metadata: dict[str, str] = {}
    for name in sorted(set(table.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise InputError(
                f"{index} names the file {name[:80]!r}, which is no safetensors file of its "
                "folder; do not trust it"
            )
        file = index.with_name(name)
        if not file.is_file():
            raise InputError(f"{index} names {name!r}, which is missing; download it too")
        found, metadata = safetensors_files.header(file)
        for tensor, entry in found.items():
            if table.get(tensor) != name:
                raise InputError(
                    f"{file} holds {tensor!r}, which {index.name} does not say; write the index "
                    "again"
                )
            entries[tensor] = entry
    missing = sorted(set(table) - set(entries))
    if missing:
        where = table[missing[0]]
        raise InputError(f"{index} says that {missing[0]!r} is in {where!r}, and it is not there")
    return entries, metadata


def read_json(path: Path) -> dict[str, Any]:
    """A table in a JSON file; InputError where it is none."""
    check_regular(path, str(path))
    if path.stat().st_size > LARGEST_JSON:
        raise InputError(f"{path} is larger than {LARGEST_JSON} bytes; do not trust it")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}; repair it") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} holds no table; repair it")
    return value
