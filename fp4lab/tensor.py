"""QuantizedTensor: codes, block scales, tensor scale, format, logical shape; saved without pickle.

A quantized tensor is a value, not a `torch.Tensor` subclass: it has no autograd and no implicit
arithmetic. Codes and scales are plain bytes (`uint8`; float32 where a format's scales are), so
every torch release can copy, move and store them. The tensor scale is an amax, unless the format is
that of a tool that stores its encode or decode scale: the format says which, and so does a file.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fp4lab import formats
from fp4lab.errors import InputError, expect, unknown
from fp4lab.formats import BlockFormat, Direction, Hadamard
from fp4lab.kernels import ops
from fp4lab.kernels.quantize.stored import check_parts
from fp4lab.specs.plain import from_plain, to_plain

#: version of the metadata in a file; `amax`: a tensor stores its amax where it names no direction
FILE_CONVENTION = "fp4lab-1-amax"
_PARTS = ("codes", "scales", "tensor_scale")
_DIRECTIONS = {direction.name.lower(): direction for direction in Direction}


#: pairs of numbers, and powers of two without a sign
_NO_RESULT = (torch.float4_e2m1fn_x2, torch.float8_e8m0fnu)


def check_result(dtype: torch.dtype, held: str) -> None:
    """InputError unless a result of this dtype can hold the values, or the product."""
    expect("dtype", dtype, torch.dtype, "use torch.float32 or another floating-point dtype")
    if not dtype.is_floating_point or dtype in _NO_RESULT:
        raise InputError(
            f"dtype={dtype} cannot hold the {held}; use torch.float32 or another floating-point "
            "dtype"
        )


@dataclass(frozen=True, eq=False, repr=False)
class QuantizedTensor:
    """A tensor in a block format.

    Args:
        codes: element codes of the matrix of rows along which blocks run: `[M, K]` uint8,
            `[M, ceil(K/2)]` for 4-bit elements (even columns in the low nibble), int16 bit patterns
            for 16-bit elements.
        scales: block scales `[ceil(M/r), ceil(K/c)]`, bytes of the scale type or float32; `[0, 0]`
            for a plain cast.
        tensor_scale: what the second level stores, float32 `[1]`, `[M]`, or `[0]` without one: an
            amax, or the encode or decode scale (`format.direction`).
        format: the block format.
        shape: logical shape; all dimensions before the last are flattened to rows.
        axis: -1, or -2 when blocks run along the rows: the stored matrix is then the transpose.
        hadamard: the transform that was applied along the blocks before: the values are those of
            the transformed tensor. Products take two tensors that were transformed alike.

    Raises:
        InputError: parts whose shapes, dtypes or devices do not belong together.

    >>> import fp4lab
    >>> q = fp4lab.quantize(torch.arange(64.0).reshape(2, 2, 16), formats.NVFP4)
    >>> q.codes.shape, q.scales.shape, q.tensor_scale, q.nbytes
    (torch.Size([4, 8]), torch.Size([4, 1]), tensor([63.]), 40)
    """

    codes: Tensor
    scales: Tensor
    tensor_scale: Tensor
    format: BlockFormat
    shape: torch.Size
    axis: int = -1
    hadamard: Hadamard | None = None

    def __post_init__(self) -> None:
        for name, part in zip(_PARTS, self.parts(), strict=True):
            expect(name, part, Tensor, "give the part of a tensor that fp4lab.quantize made")
        expect("format", self.format, BlockFormat, "use formats.get(name)")
        expect("shape", self.shape, torch.Size, "give the torch.Size of the values")
        cure = "use formats.Hadamard(size), or None"
        expect("hadamard", self.hadamard, Hadamard, cure, optional=True)
        if not self.shape or self.axis not in (-1, -2):
            raise InputError(
                f"shape={tuple(self.shape)} with axis={self.axis!r}: give at least one dimension, "
                "and -1 or -2"
            )
        check_parts(self.parts(), self.format, *self.matrix_shape)
        if self.hadamard is not None and self.matrix_shape[1] % self.hadamard.size:
            raise InputError(
                f"hadamard={self.hadamard!r} with {self.matrix_shape[1]} values along the blocks: "
                "give a size that divides them, or None"
            )
        for name in ("scales", "tensor_scale"):
            # no gradient flows through scales
            if getattr(self, name).requires_grad:
                object.__setattr__(self, name, getattr(self, name).detach())

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows and columns of the stored matrix (blocks run along its columns)."""
        columns = self.shape[-1]
        rows = self.shape[:-1].numel()
        return (rows, columns) if self.axis == -1 else (columns, rows)

    @property
    def amax(self) -> Tensor:
        """The second-level amax: float32 `[1]`, `[M]`, or `[0]` without a second level.

        Raises:
            InputError: the format stores another number, from which an amax cannot be had exactly.

        >>> import fp4lab
        >>> fp4lab.quantize(torch.ones(16), formats.NVFP4).amax
        tensor([1.])
        """
        if (direction := self.format.direction) != Direction.AMAX:
            raise InputError(
                f"amax of a tensor in {self.format.name!r}: it stores its {direction.words}, which "
                "gives no exact amax; use q.tensor_scale"
            )
        return self.tensor_scale

    @property
    def transform(self) -> str:
        """Size and signs of the Hadamard transform, which are alike where it is; "" for none."""
        return "" if self.hadamard is None else self.hadamard.definition

    @property
    def device(self) -> torch.device:
        """Where codes and scales are."""
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and tensor scale."""
        return sum(part.numel() * part.element_size() for part in self.parts())

    @property
    def bits_per_value(self) -> float:
        """Memory of one value, scales included; NaN for an empty tensor.

        Codes of 6 bits lie in bytes here; `format.bits_per_value` is what the format needs.
        """
        return 8 * self.nbytes / self.shape.numel() if self.shape.numel() else float("nan")

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Codes, scales, tensor scale."""
        return self.codes, self.scales, self.tensor_scale

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values, in the logical shape (computed in float32, then rounded to dtype).

        What was transformed before it was quantized stays transformed.

        Raises:
            InputError: dtype is not a floating-point one.
        """
        check_result(dtype, "values")
        how = (self.format.definition, self.matrix_shape[1], dtype)
        matrix: Tensor = ops.dequantize(*self.parts(), *how)
        if self.axis == -2:
            matrix = matrix.t()
        return matrix.reshape(self.shape)

    def to(self, device: torch.device | str) -> QuantizedTensor:
        """On another device; parts that are there already are shared."""
        if isinstance(device, torch.dtype):
            raise InputError(f"device={device} is a dtype; dequantize(dtype) gives values in one")
        codes, scales, outer = (part.to(device) for part in self.parts())
        return dataclasses.replace(self, codes=codes, scales=scales, tensor_scale=outer)

    def __getitem__(self, index: object) -> QuantizedTensor:
        raise InputError(
            "a QuantizedTensor cannot be indexed, for elements share bytes and scales; index its "
            "values: q.dequantize()[...]"
        )

    def equal(self, other: QuantizedTensor) -> bool:
        """Whether both hold the same bits, format, shape and transform."""
        expect("other", other, QuantizedTensor, "compare values by dequantize()")
        return self.is_like(other) and all(
            a.dtype == b.dtype and a.shape == b.shape and _same_bytes(a, b)
            for a, b in zip(self.parts(), other.parts(), strict=True)
        )

    def is_like(self, other: QuantizedTensor) -> bool:
        """Whether both have the same format, shape, axis and transform."""
        mine, theirs = ((q.format, q.shape, q.axis, q.transform) for q in (self, other))
        return mine == theirs

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        along = "" if self.axis == -1 else ", blocks along dim -2"
        if self.hadamard is not None:
            along += f", after a Hadamard transform of {self.hadamard.size}"
        outer = ""
        if self.tensor_scale.numel() == 1 and self.tensor_scale.device.type != "meta":
            outer = f", {self.format.direction.words} {self.tensor_scale.item():.4g}"
        bits = f"{self.bits_per_value:.2f} bits a value"
        if self.format.element.bits not in (4, 8, 16):
            bits += " in memory"
        return f"QuantizedTensor({self.format.name} {size}{along}, {bits}{outer}, {self.device})"


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    a, b = (part.clone(memory_format=torch.contiguous_format) for part in (a, b))
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


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
    flat: dict[str, Tensor] = {}
    described: dict[str, dict[str, object]] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, QuantizedTensor):
            for part, value in zip(stored_names(tensor.format), tensor.parts(), strict=True):
                _add(flat, f"{name}.{part}", value)
            described[name] = description(
                tensor.format, tensor.shape, axis=tensor.axis, transform=tensor.transform
            )
        else:
            _add(flat, name, tensor)
    metadata = {"convention": FILE_CONVENTION, "quantized": json.dumps(described)}
    beside = Path(f"{path}.part")
    try:
        write_file(beside, _unshared(flat), metadata)
        beside.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        beside.unlink(missing_ok=True)


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


def _add(flat: dict[str, Tensor], name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise InputError(
            f"tensors[{name!r}] is a {type(value).__name__}; save takes QuantizedTensor and Tensor"
        )
    if name == "__metadata__":
        raise InputError("tensors has the name '__metadata__', which safetensors keeps; rename it")
    if value.layout != torch.strided or value.device.type == "meta":
        raise InputError(f"tensors[{name!r}] is sparse or on the meta device; make it dense first")
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

    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            flat = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"path={str(path)!r} is not a whole safetensors file: {error}") from None
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


def restored(
    name: str, parts: Sequence[Tensor], fmt: BlockFormat, described: Mapping[str, Any]
) -> QuantizedTensor:
    """The tensor of parts and their description; InputError where they do not belong together."""
    sizes, axis = described["shape"], described["axis"]
    whole_sizes = isinstance(sizes, list) and all(type(n) is int and n >= 0 for n in sizes)
    if not whole_sizes:
        raise InputError(f"shape={sizes!r} of {name!r} is not a list of sizes")
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
