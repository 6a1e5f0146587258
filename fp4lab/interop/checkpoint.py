"""Checkpoints of this and other tools: a mapping from names to tensors, read when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat
from fp4lab.interop.configs import layout_of_config
from fp4lab.interop.entries import Entry
from fp4lab.interop.gguf_blocks import SIDES, from_blocks
from fp4lab.interop.layouts import LayoutName, gguf_format, scale_name
from fp4lab.interop.output import Form
from fp4lab.interop.sources import Source, open_source, raw
from fp4lab.interop.stored import STORAGES, decoded
from fp4lab.tensor import QuantizedTensor
from fp4lab.tensor.files import (
    FILE_CONVENTION,
    described_format,
    described_shape,
    read_descriptions,
    restored,
    stored_names,
)


@dataclass(frozen=True)
class Weight:
    """A quantized tensor of a file: its format, sizes and parts; what describes it in fp4lab's."""

    format: BlockFormat
    shape: tuple[int, ...]
    parts: tuple[Entry, ...]
    description: Mapping[str, Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its parts."""
        return sum(part.nbytes for part in self.parts)

    @property
    def form(self) -> Form:
        """What the tensor is like."""
        told = self.description or {}
        axis, transform = told.get("axis", -1), told.get("hadamard", "")
        return Form(self.format, self.shape, axis, transform)


class Checkpoint(Mapping[str, QuantizedTensor | Tensor]):
    """The tensors of a file or folder by name; each is read anew when it is asked for.

    Attributes:
        source: the files.
        layout: the layout they are in; None where nothing is quantized.
        weights: the quantized tensors, of which nothing has been read.
        plain: the other tensors.
    """

    def __init__(self, source: Source, *, check_scales: bool = True) -> None:
        self.source = source
        self._check = check_scales and not source.is_ours
        self.layout, self.weights = _weights(source)
        taken = {part.name for weight in self.weights.values() for part in weight.parts}
        self.plain = {n: entry for n, entry in source.entries.items() if n not in taken}

    def __getitem__(self, name: str) -> QuantizedTensor | Tensor:
        if name in self.weights:
            return self._quantized(name, self.weights[name])
        return self.source.tensor(self.plain[name])

    def _quantized(self, name: str, weight: Weight) -> QuantizedTensor:
        if self.layout == "gguf":
            return _from_gguf(name, weight, check=self._check)
        parts = [self.source.tensor(part) for part in weight.parts]
        if weight.description is not None:
            return restored(name, parts, weight.format, weight.description)
        codes, scales, outer = (*parts, None)[:3]
        assert codes is not None
        assert scales is not None
        layout = str(self.layout)
        return decoded(
            name, codes, scales, outer, fmt=weight.format, layout=layout, check=self._check
        )

    def __iter__(self) -> Iterator[str]:
        yield from self.weights
        yield from self.plain

    def __len__(self) -> int:
        return len(self.weights) + len(self.plain)

    def __repr__(self) -> str:
        layout = self.layout or "nothing quantized"
        return f"Checkpoint({str(self.source.path)!r}, {layout}, {len(self)} tensors)"


def read(path: str | Path, *, check_scales: bool = True) -> Checkpoint:
    """Open a checkpoint: a safetensors file, a folder of Hugging Face, or a GGUF file.

    Args:
        path: weights in fp4lab's, compressed-tensors' or ModelOpt's layout, as GGUF, or not
            quantized.
        check_scales: whether a tensor scale is refused that is likely one of the other direction:
            the largest weight is then beyond float16, and would be within if it were the other
            scale. Files that were written here are not checked.

    Returns:
        a mapping from names to `QuantizedTensor` and `torch.Tensor`. Nothing but headers is read
        until a tensor is asked for. Codes, block scales and tensor scales are those of the file,
        bit for bit; a weight whose tensor scale says that it is all zeros decodes to zeros,
        whatever its block scales are. What GGUF stores in another quantized type comes in float32.

    Raises:
        InputError: nothing is there; a file that is damaged, pickled, or in a layout whose tensor
            scales would be misread: names of one tool beside the configuration of another.
        OSError: it cannot be read.

    >>> import torch, fp4lab
    >>> fp4lab.save({"w": fp4lab.quantize(torch.ones(16, 32), "nvfp4")}, "w.safetensors")
    >>> checkpoint = read("w.safetensors")
    >>> checkpoint.layout, checkpoint["w"]
    ('fp4lab', QuantizedTensor(nvfp4 16x32, 4.56 bits a value, amax 1, cpu))
    """
    return Checkpoint(open_source(path), check_scales=check_scales)


def layout_of(path: str | Path) -> LayoutName | None:
    """The layout of a checkpoint; None where nothing in it is quantized. Errors as in `read`.

    >>> import torch, fp4lab
    >>> fp4lab.save({"w": fp4lab.quantize(torch.ones(16, 32), "nvfp4")}, "w.safetensors")
    >>> layout_of("w.safetensors")
    'fp4lab'
    """
    return read(path).layout


def _weights(source: Source) -> tuple[LayoutName | None, dict[str, Weight]]:
    if source.is_gguf:
        weights = _gguf_weights(source)
        return ("gguf" if weights else None), weights
    if source.metadata.get("convention") is not None:
        return "fp4lab", _fp4lab_weights(source)
    scales = [name for name in source.entries if _last(name) == "weight_scale"]
    others = [n for n in source.entries if _last(n) in ("weight_packed", "weight_scale_2")]
    by_config = layout_of_config(source)
    if not scales and not others:
        return None, {}
    layout = by_config or _layout_of_names(source)
    changed = next((n for n in source.entries if _last(n) in _CHANGING), None)
    if changed is not None:
        raise InputError(
            f"{source.path}: {changed!r} changes what the weight beside it means, and is not read "
            "here; export the model without it"
        )
    for name in source.entries:
        if _last(name) in _FOREIGN[layout]:
            whose = "the configuration" if by_config else "other names"
            raise InputError(
                f"{source.path}: {name!r} is not a name of {layout}, to which {whose} in it "
                "belong; the two store tensor scales in opposite directions: export it again with "
                "one tool"
            )
    stems = {name.removesuffix(_last(name)): None for name in (*scales, *others)}
    return layout, {f"{stem}weight": _named_weight(source, layout, stem) for stem in stems}


#: what scales or orders the inputs or columns of a weight
_CHANGING = ("pre_quant_scale", "weight_g_idx", "weight_zero_point")
#: names that a layout does not have
_FOREIGN: dict[str, tuple[str, ...]] = {
    "compressed-tensors": ("weight_scale_2",),
    "modelopt": ("weight_packed", "weight_global_scale"),
}


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _layout_of_names(source: Source) -> LayoutName:
    """The layout whose names these are, where no configuration says it."""
    words = {_last(name) for name in source.entries}
    if words & {"weight_packed", "weight_global_scale"}:
        return "compressed-tensors"
    if "weight_scale_2" in words:
        return "modelopt"
    packed = any(e.dtype == "U8" for n, e in source.entries.items() if _last(n) == "weight")
    # MXFP8 is stored alike by both
    return "modelopt" if packed else "compressed-tensors"


def _named_weight(source: Source, layout: LayoutName, stem: str) -> Weight:
    """A weight of compressed-tensors or ModelOpt by the names and dtypes of its parts."""
    found = {part: source.entries.get(stem + part) for part in _PARTS}
    for (owner, _), storage in STORAGES.items():
        entries = [found[part.name] for part in storage.parts]
        parts = [entry for entry in entries if entry is not None]
        present = sum(entry is not None for entry in found.values())
        if owner != layout or len(parts) != len(entries) or len(parts) != present:
            continue
        allowed = zip(parts, storage.parts, strict=True)
        if all(entry.dtype in _SAME.get(part.dtype, (part.dtype,)) for entry, part in allowed):
            *rows, columns = parts[0].shape or (0,)
            shape = (*rows, columns * (1 + storage.format.packed))
            return Weight(storage.format, shape, tuple(parts))
    there = ", ".join(
        f"{name} {entry.dtype} {list(entry.shape)}" for name, entry in found.items() if entry
    )
    raise InputError(
        f"{source.path}: {stem + 'weight'!r} has {there}: that is no NVFP4, MXFP4 or MXFP8 of "
        f"{layout}, which are read; dequantize the file with the tool it comes from"
    )


#: the same bytes under two dtypes
_SAME = {"U8": ("U8", "F8_E8M0")}
_PARTS = ("weight", "weight_packed", "weight_scale", "weight_global_scale", "weight_scale_2")


def _fp4lab_weights(source: Source) -> dict[str, Weight]:
    convention = source.metadata["convention"]
    if convention != FILE_CONVENTION:
        raise InputError(
            f"path={str(source.path)!r} has the convention {convention!r}, not "
            f"{FILE_CONVENTION!r}; its tensor scales mean something else, convert it with the tool "
            "that wrote it"
        )
    weights: dict[str, Weight] = {}
    for name, described in read_descriptions(source.metadata, source.path).items():
        fmt = described_format(name, described)
        try:
            parts = tuple(source.entries[f"{name}.{part}"] for part in stored_names(fmt))
        except KeyError as error:
            raise InputError(f"path={str(source.path)!r} lacks the tensor {error}") from None
        sizes = described_shape(name, described)
        weights[name] = Weight(fmt, sizes, parts, description=described)
    return weights


def _gguf_weights(source: Source) -> dict[str, Weight]:
    weights: dict[str, Weight] = {}
    for name, entry in source.entries.items():
        if entry.dtype not in SIDES:
            continue
        if entry.nbytes == 0:
            raise InputError(f"{source.path}: {name!r} is empty; leave it out of the file")
        scale = None
        if entry.dtype == "NVFP4":
            scale = source.entries.get(scale_name(name)) or source.entries.get(f"{name}.scale")
        if scale is not None and (scale.dtype != "F32" or scale.nbytes != 4):
            raise InputError(
                f"{source.path}: {scale.name!r} is {scale.dtype} {list(scale.shape)}; weights with "
                "one float32 scale are read"
            )
        fmt = gguf_format(entry.dtype, scaled=scale is not None)
        weights[name] = Weight(fmt, entry.shape, (entry,) if scale is None else (entry, scale))
    return weights


def _from_gguf(name: str, weight: Weight, *, check: bool) -> QuantizedTensor:
    blocks, *scale = weight.parts
    rows = raw(blocks).reshape(*blocks.shape[:-1], -1)
    codes, scales = from_blocks(rows.reshape(-1, rows.shape[-1]), blocks.dtype)
    # ggml knows no sign and no NaN of a scale: it would read others as numbers
    odd = scales >= 0x7F if blocks.dtype == "NVFP4" else scales == 0xFF
    if bool(odd.any()):
        raise InputError(
            f"{name!r} has {int(odd.sum())} block scales that are negative or NaN, and llama.cpp "
            "reads those as other numbers; requantize the file with llama.cpp"
        )
    return decoded(
        name,
        codes,
        scales,
        raw(scale[0]).view(torch.float32) if scale else None,
        fmt=weight.format,
        layout="gguf",
        shape=weight.shape,
        check=check,
    )
