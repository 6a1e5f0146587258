"""What each layout makes of a weight: the tensors of the file, and their bytes, rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol, TypeAlias, get_args

import torch
from torch import Tensor

from fp4lab import formats
from fp4lab.errors import InputError, unknown
from fp4lab.formats import BlockFormat, Level
from fp4lab.interop import gguf_files
from fp4lab.interop.entries import DTYPES, NAMES, Slot
from fp4lab.interop.gguf_blocks import block_side, to_blocks
from fp4lab.interop.sink import bytes_of
from fp4lab.interop.sink import slot as slot_of
from fp4lab.interop.stored import (
    STORAGES,
    Storage,
    kind_of,
    restated,
)
from fp4lab.kernels.quantize import reference
from fp4lab.tensor import QuantizedTensor
from fp4lab.tensor.files import stored_names

LayoutName: TypeAlias = Literal["compressed-tensors", "modelopt", "gguf", "fp4lab"]
LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)
#: bytes of a tensor's name that llama.cpp reads
LONGEST_GGUF_NAME = 63
Pieces: TypeAlias = Iterator[tuple[str, memoryview]]


class Layout(Protocol):
    """How a layout stores weights, and what it cannot store."""

    name: LayoutName

    def check_format(self, fmt: BlockFormat) -> None:
        """InputError for a format that the layout has no place for."""

    def refusal(self, name: str, shape: tuple[int, ...], fmt: BlockFormat) -> str:
        """Why a tensor of this name and shape cannot be stored in the format; "" where it can."""

    def slots(self, name: str, shape: tuple[int, ...], fmt: BlockFormat) -> list[Slot]:
        """The tensors of the file."""

    def stored(self, name: str, q: QuantizedTensor) -> QuantizedTensor:
        """Some rows as the layout stores them; InputError for what it cannot."""

    def pieces(self, name: str, q: QuantizedTensor, *, first: bool) -> Pieces:
        """Bytes of what is stored; the tensor scale comes with the first rows."""

    def plain(self, slot: Slot) -> Slot:
        """The place of a tensor that is not quantized."""


def get(name: LayoutName) -> Layout:
    """The layout of this name; an unknown one is an InputError."""
    if name not in LAYOUTS:
        raise unknown("layout", name, LAYOUTS)
    if name == "gguf":
        return Gguf()
    return Fp4lab() if name == "fp4lab" else Named(name)


def matrix_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of what blocks run along the last dimension of."""
    return torch.Size(shape[:-1]).numel(), shape[-1]


class Named:
    """compressed-tensors and ModelOpt: parts under names of their own."""

    def __init__(self, name: LayoutName) -> None:
        self.name = name

    def check_format(self, fmt: BlockFormat) -> None:
        """InputError for what is not NVFP4, MXFP4 or MXFP8."""
        if kind_of(fmt) is None:
            raise InputError(
                f"format={fmt.name!r} has no place in {self.name}, which holds NVFP4, MXFP4 and "
                "MXFP8 with E4M3 elements; use layout='fp4lab', or another format"
            )

    def storage(self, fmt: BlockFormat) -> Storage:
        """How weights of the format are stored."""
        return STORAGES[self.name, str(kind_of(fmt))]

    def refusal(self, name: str, shape: tuple[int, ...], fmt: BlockFormat) -> str:
        """Weights of layers only: matrices of whole blocks, whose name ends in "weight"."""
        if name != "weight" and not name.endswith(".weight"):
            return "its name does not end in .weight"
        return f"{len(shape)}-D" if len(shape) != 2 else unfit(shape, fmt, 1)

    def slots(self, name: str, shape: tuple[int, ...], fmt: BlockFormat) -> list[Slot]:
        """Codes, block scales and tensor scale."""
        how, stem = self.storage(fmt), name.removesuffix("weight")
        assert fmt.block is not None
        rows, columns = shape
        found = [
            slot_of(stem + how.codes.name, how.codes.dtype, (rows, columns // (1 + fmt.packed))),
            slot_of(stem + how.scales.name, how.scales.dtype, (rows, columns // fmt.block[1])),
        ]
        if how.tensor_scale is not None:
            part = how.tensor_scale
            found.append(slot_of(stem + part.name, part.dtype, how.tensor_scale_shape))
        return found

    def stored(self, name: str, q: QuantizedTensor) -> QuantizedTensor:
        """With a tensor scale of the layout's direction; InputError for NaN."""
        return restated(q, self.storage(q.format).format, name)

    def pieces(self, name: str, q: QuantizedTensor, *, first: bool) -> Pieces:
        """The bytes of each part."""
        how, stem = self.storage(q.format), name.removesuffix("weight")
        yield stem + how.codes.name, bytes_of(q.codes)
        yield stem + how.scales.name, bytes_of(q.scales)
        if first and how.tensor_scale is not None:
            yield stem + how.tensor_scale.name, bytes_of(q.tensor_scale)

    def plain(self, slot: Slot) -> Slot:
        """As it is."""
        return _plain(slot)


class Gguf:
    """GGUF: blocks of ggml, and the decode scale in a tensor of its own."""

    name: LayoutName = "gguf"

    def dtype(self, fmt: BlockFormat) -> str:
        """ggml's name of the format's blocks; InputError where it has none."""
        dtype = {"nvfp4": "NVFP4", "mxfp4": "MXFP4"}.get(str(kind_of(fmt)))
        if dtype is None:
            raise InputError(
                f"format={fmt.name!r} has no place in gguf, which holds NVFP4 and MXFP4; use "
                "another layout or format"
            )
        return dtype

    def check_format(self, fmt: BlockFormat) -> None:
        """InputError for what is not NVFP4 or MXFP4."""
        self.dtype(fmt)

    def refusal(self, name: str, shape: tuple[int, ...], fmt: BlockFormat) -> str:
        """Rows of whole blocks of ggml: 64 columns for NVFP4."""
        return unfit(shape, fmt, block_side(self.dtype(fmt)))

    def slots(self, name: str, shape: tuple[int, ...], fmt: BlockFormat) -> list[Slot]:
        """The blocks, and the scale where the format has a second level."""
        dtype = self.dtype(fmt)
        found = [Slot(_gguf_name(name), dtype, shape, gguf_files.nbytes(dtype, shape))]
        if fmt.level != Level.NONE:
            found.append(Slot(_gguf_name(scale_name(name)), "F32", (1,), 4))
        return found

    def stored(self, name: str, q: QuantizedTensor) -> QuantizedTensor:
        """With a decode scale; InputError for NaN and for negative block scales."""
        dtype = self.dtype(q.format)
        found = restated(q, gguf_format(dtype, scaled=q.format.level != Level.NONE), name)
        if dtype == "NVFP4" and bool((found.scales & 0x80).any()):
            raise InputError(f"{name!r} has negative block scales, which GGUF cannot hold; keep it")
        return found

    def pieces(self, name: str, q: QuantizedTensor, *, first: bool) -> Pieces:
        """The blocks of some rows."""
        yield name, bytes_of(to_blocks(q.codes, q.scales, self.dtype(q.format)))
        if first and q.format.level != Level.NONE:
            yield scale_name(name), bytes_of(q.tensor_scale)

    def plain(self, slot: Slot) -> Slot:
        """As it is; a single number has the shape [1] there."""
        try:
            needed = gguf_files.nbytes(slot.dtype, slot.shape)
        except KeyError:
            raise InputError(
                f"{slot.name!r} has the dtype {slot.dtype}, which GGUF does not know; use "
                "another layout"
            ) from None
        if len(slot.shape) > 4:
            raise InputError(f"{slot.name!r} has {len(slot.shape)} dimensions, and GGUF 4 at most")
        assert needed == slot.nbytes
        return Slot(_gguf_name(slot.name), slot.dtype, slot.shape or (1,), slot.nbytes)


def gguf_format(dtype: str, *, scaled: bool) -> BlockFormat:
    """The format of ggml's blocks of a type, with or without a tensor scale beside them."""
    if dtype == "MXFP4":
        return formats.MXFP4
    return formats.NVFP4_MODELOPT if scaled else formats.NVFP4_ONE_LEVEL


def scale_name(name: str) -> str:
    """Where llama.cpp looks for the tensor scale of a weight.

    >>> scale_name("blk.0.attn_q.weight")
    'blk.0.attn_q.scale'
    """
    return f"{name.removesuffix('.weight')}.scale"


def _gguf_name(name: str) -> str:
    if len(name.encode()) > LONGEST_GGUF_NAME:
        raise InputError(
            f"{name!r} is longer than the {LONGEST_GGUF_NAME} bytes of a name in GGUF; use another "
            "layout, or convert the model with llama.cpp first"
        )
    return name


class Fp4lab:
    """What `fp4lab.save` writes and `fp4lab.load` reads, which holds every format."""

    name: LayoutName = "fp4lab"

    def check_format(self, fmt: BlockFormat) -> None:
        """Every format has a place."""

    def refusal(self, name: str, shape: tuple[int, ...], fmt: BlockFormat) -> str:
        """Rows of whole blocks."""
        return unfit(shape, fmt, 1)

    def slots(self, name: str, shape: tuple[int, ...], fmt: BlockFormat) -> list[Slot]:
        """Codes, scales, tensor scale."""
        rows, columns = matrix_of(shape)
        shapes = (
            (reference.codes_shape(fmt, rows, columns), reference.code_dtype(fmt.element)),
            (reference.scales_shape(fmt, rows, columns), reference.scales_dtype(fmt)),
            (reference.amax_shape(fmt, rows), torch.float32),
        )
        return [
            slot_of(f"{name}.{part}", NAMES[dtype], tuple(shape))
            for part, (shape, dtype) in zip(stored_names(fmt), shapes, strict=True)
        ]

    def stored(self, name: str, q: QuantizedTensor) -> QuantizedTensor:
        """As it is."""
        return q

    def pieces(self, name: str, q: QuantizedTensor, *, first: bool) -> Pieces:
        """The bytes of each part."""
        per_row = q.format.level == Level.ROW
        for at, (part, value) in enumerate(zip(stored_names(q.format), q.parts(), strict=True)):
            if at < 2 or first or per_row:
                yield f"{name}.{part}", bytes_of(value)

    def plain(self, slot: Slot) -> Slot:
        """As it is."""
        return _plain(slot)


def _plain(slot: Slot) -> Slot:
    if slot.dtype not in DTYPES:
        raise InputError(
            f"{slot.name!r} has the dtype {slot.dtype}, which this layout does not know; "
            "use layout='gguf'"
        )
    return slot


def unfit(shape: tuple[int, ...], fmt: BlockFormat, side: int) -> str:
    """Why a shape does not consist of whole blocks of at least so many columns; "" where it does.

    >>> from fp4lab import formats
    >>> unfit((4, 24), formats.NVFP4, 1)
    '24 columns do not fit blocks of 16'
    """
    blocks = (1, 1) if fmt.block is None else fmt.block
    extents = matrix_of(shape or (0,))
    sides = (blocks[0], max(blocks[1], side))
    for extent, block, what in zip(extents, sides, ("rows", "columns"), strict=True):
        if extent == 0:
            return "empty"
        if block and extent % block:
            return f"{extent} {what} do not fit blocks of {block}"
    return ""


def plain_slot(how: Layout, name: str, tensor: Tensor) -> Slot:
    """The place of a tensor in memory; InputError for a dtype that the file does not know."""
    if tensor.dtype not in NAMES:
        raise InputError(f"tensors[{name!r}] has dtype {tensor.dtype}, which no layout knows")
    nbytes = tensor.numel() * tensor.element_size()
    return how.plain(Slot(name, NAMES[tensor.dtype], tuple(tensor.shape), nbytes))
