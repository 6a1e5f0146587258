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
scale that a layout stores in another direction is converted by one float32 division; that of a
tensor of zeros is stored as 1, for no loader divides that into an infinity.

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

LARGEST, SMALLEST = torch.finfo(torch.float32).max, 2.0**-149
#: a weight of a trained model is below float16's largest; scales that say otherwise are misread
LARGEST_WEIGHT = 65504.0


@dataclass(frozen=True)
class Part:
    """A tensor of a stored weight: the end of its name, and safetensors' name of its dtype."""

    name: str
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How a layout stores weights of one kind.

    Attributes:
        layout: the layout.
        kind: "nvfp4", "mxfp4" or "mxfp8".
        codes, scales, tensor_scale: the parts; there is a tensor scale for NVFP4 only.
        tensor_scale_shape: its sizes.
        format: of the tensors that are read; it has the layout's direction and order of decoding.
    """

    layout: str
    kind: str
    codes: Part
    scales: Part
    format: BlockFormat
    tensor_scale: Part | None = None
    tensor_scale_shape: tuple[int, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is stored."""
        parts = (self.codes, self.scales)
        return parts if self.tensor_scale is None else (*parts, self.tensor_scale)


def _storages() -> dict[tuple[str, str], Storage]:
    ct, mo = "compressed-tensors", "modelopt"
    packed, scale, plain = "weight_packed", "weight_scale", "weight"
    rows = (
        Storage(
            layout=ct,
            kind="nvfp4",
            codes=Part(packed, "U8"),
            scales=Part(scale, "F8_E4M3"),
            format=formats.NVFP4_COMPRESSED_TENSORS,
            tensor_scale=Part("weight_global_scale", "F32"),
            tensor_scale_shape=(1,),
        ),
        Storage(
            layout=mo,
            kind="nvfp4",
            codes=Part(plain, "U8"),
            scales=Part(scale, "F8_E4M3"),
            format=formats.NVFP4_MODELOPT,
            tensor_scale=Part("weight_scale_2", "F32"),
        ),
        *(
            Storage(
                layout=layout,
                kind=kind,
                codes=codes,
                scales=Part(scale, "U8"),
                format=formats.MXFP4 if kind == "mxfp4" else formats.MXFP8_E4M3,
            )
            for layout, kind, codes in (
                (ct, "mxfp4", Part(packed, "U8")),
                (ct, "mxfp8", Part(plain, "F8_E4M3")),
                (mo, "mxfp4", Part(plain, "U8")),
                (mo, "mxfp8", Part(plain, "F8_E4M3")),
            )
        ),
    )
    return {(row.layout, row.kind): row for row in rows}


STORAGES = _storages()


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


def converted_scale(scale: Tensor, fmt: BlockFormat, direction: Direction) -> Tensor:
    """The tensor scale in the direction that is stored, float32 `[1]`; 1 where there is none.

    >>> converted_scale(torch.tensor([21.0]), formats.NVFP4, Direction.ENCODE)
    tensor([128.])
    >>> converted_scale(torch.tensor([0.0]), formats.NVFP4, Direction.ENCODE)
    tensor([1.])
    """
    if scale.numel() == 0:
        return torch.ones(1)
    if zero_scale(scale, fmt.direction):
        return torch.full((1,), fmt.amax_factor if direction == Direction.AMAX else 1.0)
    if fmt.direction == direction:
        return scale
    factor = torch.tensor(fmt.amax_factor)
    if fmt.direction == Direction.AMAX:
        result = factor / scale if direction == Direction.ENCODE else scale / factor
    elif direction == Direction.AMAX:
        result = factor / scale if fmt.direction == Direction.ENCODE else scale * factor
    else:
        result = 1.0 / scale
    return result.clamp(SMALLEST, LARGEST)


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


def check_direction(value: float, name: str, storage_name: str, fmt: BlockFormat) -> None:
    """InputError for a tensor scale that is no scale, or plainly one of the other direction.

    It is plain where the largest weight that it stands for is beyond float16, and would be within
    if the number were the other scale.
    """
    if not 0 <= value < float("inf") and not (
        value == float("inf") and fmt.direction == Direction.ENCODE
    ):
        raise InputError(
            f"the tensor scale of {name!r} is {value!r}, which is negative, infinite or NaN; "
            f"{_AGAIN}"
        )
    if value in (0.0, float("inf")):
        return
    encode = fmt.direction == Direction.ENCODE
    says = fmt.amax_factor / value if encode else fmt.amax_factor * value
    other = fmt.amax_factor * value if encode else fmt.amax_factor / value
    if says > LARGEST_WEIGHT >= other:
        mine, its = ("encode", "decode") if encode else ("decode", "encode")
        raise InputError(
            f"the tensor scale of {name!r} is {value:.6g}: as the {mine} scale that "
            f"{storage_name} stores, the largest weight were {says:.3g}, and as a {its} scale "
            f"{other:.3g}: it is stored in the other direction; {_AGAIN}"
        )


_AGAIN = "export the file again with the tool whose names it has"


def decoded(
    storage: Storage,
    name: str,
    codes: Tensor,
    scales: Tensor,
    tensor_scale: Tensor | None,
    *,
    shape: tuple[int, ...] | None = None,
) -> QuantizedTensor:
    """The weight of stored parts, bit for bit; `shape` where it is not that of the matrix.

    Raises:
        InputError: parts that do not belong together, or a tensor scale of the other direction.
    """
    fmt = storage.format
    if codes.dim() != 2:
        raise InputError(f"{name!r} has codes of {codes.dim()} dimensions; weights of 2 are read")
    sizes = shape or (codes.shape[0], codes.shape[1] * (1 + fmt.packed))
    outer = torch.empty(0)
    if storage.tensor_scale is not None:
        assert tensor_scale is not None
        if tensor_scale.numel() != 1:
            raise InputError(
                f"{name!r} has {tensor_scale.numel()} tensor scales; weights with one are read"
            )
        outer = tensor_scale.reshape(1).to(torch.float32)
        check_direction(outer.item(), name, storage.layout, fmt)
    codes, scales = codes.view(torch.uint8), scales.view(torch.uint8)
    if storage.tensor_scale is not None and zero_scale(outer, fmt.direction):
        codes, scales, outer = _zeros(codes, scales, outer, fmt)
    try:
        return QuantizedTensor(codes, scales, outer, fmt, torch.Size(sizes))
    except InputError as error:
        raise InputError(f"{name}.{error}") from None


def _zeros(
    codes: Tensor, scales: Tensor, outer: Tensor, fmt: BlockFormat
) -> tuple[Tensor, Tensor, Tensor]:
    """A tensor of zeros as one that decodes to zeros, also where a tool has stored NaN scales."""
    if fmt.direction == Direction.ENCODE or bool(((scales & 0x7F) == 0x7F).any()):
        return torch.zeros_like(codes), torch.zeros_like(scales), torch.ones(1)
    return codes, scales, outer
