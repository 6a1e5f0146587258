"""How layouts store a weight: names, dtypes, and what their tensor scale means.

    layout              codes               block scales         tensor scale
    compressed-tensors  weight_packed U8    weight_scale         weight_global_scale [1]  encode
                        (MXFP8: weight)
    modelopt            weight U8           weight_scale         weight_scale_2 []        decode
    gguf                one tensor of blocks                     <stem>.scale [1]         decode
    fp4lab              <name>.codes        <name>.scales        <name>.amax and so on, as it is

NVFP4's block scales are E4M3, those of MXFP4 and MXFP8 E8M0 in uint8. An encode scale is
C*M / amax, a decode scale amax / (C*M); taking one for the other puts weights off by its square.
Codes and block scales are never computed again: they are copied, or moved within a block. A tensor
scale that a layout stores in another direction is converted by one float32 division, and refused
where that gives no normal number; that of a tensor of zeros is stored as 1, with zeros as codes and
block scales.

Sources: compressed-tensors 0.20.1, nvidia-modelopt 0.47.0, the GGUF of llama.cpp (types 39, 40).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fp4lab import formats
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat, Direction, Level
from fp4lab.tensor import QuantizedTensor

#: of the normal numbers of float32
LARGEST, SMALLEST = torch.finfo(torch.float32).max, torch.finfo(torch.float32).tiny
#: a weight of a trained model is below float16's largest; scales that say otherwise are misread
LARGEST_WEIGHT = 65504.0


@dataclass(frozen=True)
class Part:
    """A tensor of a stored weight: the end of its name, and safetensors' name of its dtype."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Storage:
    """How a layout stores weights of one kind.

    Attributes:
        format: of the tensors that are read; it has the layout's direction and order of decoding.
        codes, scales, tensor_scale: the parts; there is a tensor scale for NVFP4 only.
        tensor_scale_shape: its sizes.
    """

    format: BlockFormat
    codes: Part
    scales: Part
    tensor_scale: Part | None = None
    tensor_scale_shape: tuple[int, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is stored."""
        parts = (self.codes, self.scales)
        return parts if self.tensor_scale is None else (*parts, self.tensor_scale)


_E4M3, _E8M0 = Part("weight_scale", "F8_E4M3"), Part("weight_scale", "U8")
_PACKED, _PLAIN, _FP8 = Part("weight_packed", "U8"), Part("weight", "U8"), Part("weight", "F8_E4M3")
#: by layout and kind
STORAGES = {
    ("compressed-tensors", "nvfp4"): Storage(
        formats.NVFP4_COMPRESSED_TENSORS, _PACKED, _E4M3, Part("weight_global_scale", "F32"), (1,)
    ),
    ("compressed-tensors", "mxfp4"): Storage(formats.MXFP4, _PACKED, _E8M0),
    ("compressed-tensors", "mxfp8"): Storage(formats.MXFP8_E4M3, _FP8, _E8M0),
    ("modelopt", "nvfp4"): Storage(
        formats.NVFP4_MODELOPT, _PLAIN, _E4M3, Part("weight_scale_2", "F32")
    ),
    ("modelopt", "mxfp4"): Storage(formats.MXFP4, _PLAIN, _E8M0),
    ("modelopt", "mxfp8"): Storage(formats.MXFP8_E4M3, _FP8, _E8M0),
}


def kind_of(fmt: BlockFormat) -> str | None:
    """Whether other tools know such codes and scales, by the name of the kind.

    >>> kind_of(formats.NVFP4_4OVER6_16X16), kind_of(formats.MXFP4), kind_of(formats.NVFP4_ROWWISE)
    ('nvfp4', 'mxfp4', None)
    """
    if fmt.block is None or fmt.scale is None or fmt.block[0] == formats.WHOLE:
        return None
    scale = fmt.scale.definition
    e4m3 = scale in (formats.E4M3.definition, formats.UE4M3.definition)
    what = (fmt.element.definition, fmt.block[1])
    fp4 = formats.E2M1.definition
    if what == (fp4, 16) and e4m3 and fmt.level != Level.ROW:
        return "nvfp4"
    if scale != formats.E8M0.definition:
        return None
    kinds = {(fp4, 32): "mxfp4", (formats.E4M3.definition, 32): "mxfp8"}
    return kinds.get(what)


def row_scales(q: QuantizedTensor) -> Tensor:
    """Block scales `[M, K/16]` or `[M, K/32]`: those of a tile, again for each of its rows."""
    assert q.format.block is not None
    num_rows, side = q.matrix_shape[0], q.format.block[0]
    return q.scales if side == 1 else q.scales.repeat_interleave(side, dim=0)[:num_rows]


def restated(q: QuantizedTensor, fmt: BlockFormat, name: str) -> QuantizedTensor:
    """A weight as a layout stores it, with blocks of one row and the tensor scale of `fmt`.

    Codes and block scales stay as they are, but for a tensor scale of zeros: no loader divides a 1
    into an infinity, so with it all become zeros.

    Raises:
        InputError: NaN, or a tensor scale that is no normal number of float32 in the direction.
    """
    check_storable(q, name)
    codes, scales, outer = q.codes, row_scales(q), q.tensor_scale
    if fmt.level == Level.NONE:
        outer = torch.empty(0)
    elif outer.numel() == 0:
        outer = torch.ones(1)
    elif zero_scale(outer, q.format.direction):
        codes, scales = torch.zeros_like(codes), torch.zeros_like(scales)
        outer = torch.full((1,), fmt.amax_factor if fmt.direction == Direction.AMAX else 1.0)
    else:
        outer = converted_scale(outer, q.format, fmt.direction)
        if fmt.direction != q.format.direction and not SMALLEST <= outer.item() <= LARGEST:
            raise InputError(
                f"{name!r} has the tensor scale {q.tensor_scale.item():.6g}, which would be "
                f"{outer.item():.6g} as the {fmt.direction.name.lower()} scale that is stored, no "
                "normal number of float32; quantize the weight to a format of that direction, or "
                "leave it in high precision"
            )
    return QuantizedTensor(codes, scales, outer, fmt, torch.Size(q.shape))


def smallest_amax(fmt: BlockFormat) -> float:
    """The smallest amax whose scale is a normal number of float32 in every direction."""
    return fmt.amax_factor * SMALLEST


def converted_scale(scale: Tensor, fmt: BlockFormat, direction: Direction) -> Tensor:
    """A tensor scale that is not of zeros in the direction that is stored, float32 `[1]`.

    >>> converted_scale(torch.tensor([21.0]), formats.NVFP4, Direction.ENCODE)
    tensor([128.])
    """
    if fmt.direction == direction:
        return scale
    factor = torch.tensor(fmt.amax_factor)
    if fmt.direction == Direction.AMAX:
        return factor / scale if direction == Direction.ENCODE else scale / factor
    if direction == Direction.AMAX:
        return factor / scale if fmt.direction == Direction.ENCODE else scale * factor
    return 1.0 / scale


def zero_scale(scale: Tensor, direction: Direction) -> bool:
    """Whether a tensor scale is that of a tensor of zeros."""
    nothing = float("inf") if direction == Direction.ENCODE else 0.0
    return bool(scale.numel() == 1 and scale.item() == nothing)


def check_storable(q: QuantizedTensor, name: str) -> None:
    """InputError for scales or codes that are no numbers, which other tools read as they like."""
    assert q.format.scale is not None
    nan = torch.tensor(q.format.scale.nan_code, dtype=torch.uint8)
    scales = q.scales if not q.format.scale.has_zero else q.scales & 0x7F
    bad = int((scales == nan).sum())
    if q.format.element.nan_code is not None:
        bad += int(((q.codes & 0x7F) == q.format.element.nan_code).sum())
    known = zero_scale(q.tensor_scale, q.format.direction)
    if bad or not (known or bool(q.tensor_scale.isfinite().all())):
        raise InputError(
            f"{name!r} holds NaN or infinity ({bad} scales or codes); other tools read those as "
            "numbers: repair the tensor, or leave it in high precision"
        )


def check_scale(value: float, name: str, fmt: BlockFormat) -> None:
    """InputError for a tensor scale that is no scale."""
    encode = fmt.direction == Direction.ENCODE
    if not (value > 0 if encode else 0 <= value < float("inf")):
        raise InputError(
            f"the tensor scale of {name!r} is {value!r}, which is negative, infinite or NaN, or "
            f"the 0 that nothing is divided by; {_AGAIN}"
        )


def check_direction(q: QuantizedTensor, name: str, layout: str) -> None:
    """InputError for a tensor scale that is likely one of the other direction.

    It is likely where the largest weight of the tensor is beyond float16, and would be within if
    the number were the other scale.
    """
    fmt, value = q.format, q.tensor_scale.item()
    if zero_scale(q.tensor_scale, fmt.direction):
        return
    blocks = q.scales.view(torch.float8_e4m3fn).to(torch.float32).abs().nan_to_num(0.0)
    top = float(blocks.max()) * fmt.element.max_value
    encode = fmt.direction == Direction.ENCODE
    says, other = (top / value, top * value) if encode else (top * value, top / value)
    if says > LARGEST_WEIGHT >= other:
        mine, its = ("an encode", "a decode") if encode else ("a decode", "an encode")
        raise InputError(
            f"the tensor scale of {name!r} is {value:.6g}: as {mine} scale, which {layout} stores, "
            f"the largest weight is {says:.3g}, and as {its} scale {other:.3g}: it is likely "
            f"stored in the other direction; {_AGAIN}, or read it with check_scales=False"
        )


_AGAIN = "export the file again with the tool whose names it has"


def decoded(
    name: str,
    codes: Tensor,
    scales: Tensor,
    tensor_scale: Tensor | None,
    *,
    fmt: BlockFormat,
    layout: str,
    shape: tuple[int, ...] | None = None,
    check: bool = True,
) -> QuantizedTensor:
    """The weight of stored parts, bit for bit; `shape` where it is not that of the matrix.

    Raises:
        InputError: parts that do not belong together, or, where that is to be checked, a tensor
            scale that is likely one of the other direction.
    """
    if codes.dim() != 2:
        raise InputError(f"{name!r} has codes of {codes.dim()} dimensions; weights of 2 are read")
    sizes = shape or (codes.shape[0], codes.shape[1] * (1 + fmt.packed))
    outer = torch.empty(0)
    codes, scales = codes.view(torch.uint8), scales.view(torch.uint8)
    if tensor_scale is not None:
        if tensor_scale.numel() != 1:
            raise InputError(
                f"{name!r} has {tensor_scale.numel()} tensor scales; weights with one are read"
            )
        outer = tensor_scale.reshape(1).to(torch.float32)
        check_scale(outer.item(), name, fmt)
        if zero_scale(outer, fmt.direction):
            codes, scales, outer = _zeros(codes, scales, outer, fmt)
    try:
        q = QuantizedTensor(codes, scales, outer, fmt, torch.Size(sizes))
    except InputError as error:
        raise InputError(f"{name}.{error}") from None
    if check and tensor_scale is not None:
        check_direction(q, name, layout)
    return q


def _zeros(
    codes: Tensor, scales: Tensor, outer: Tensor, fmt: BlockFormat
) -> tuple[Tensor, Tensor, Tensor]:
    """A tensor of zeros as one that decodes to zeros, also where a tool has stored NaN scales."""
    if fmt.direction == Direction.ENCODE or bool(((scales & 0x7F) == 0x7F).any()):
        return torch.zeros_like(codes), torch.zeros_like(scales), torch.ones(1)
    return codes, scales, outer
