"""The catalogue's part for tools that quantize NVFP4 and MX in their own order of arithmetic."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import fp4lab
from fp4lab import formats as f
from fp4lab.formats import BlockFormat
from fp4lab.kernels.hadamard.reference import hadamard
from fp4lab.kernels.layout.reference import unpack_nibbles
from fp4lab.kernels.minifloat.reference import decode
from fp4lab.kernels.quantize.reference import amax_of_blocks, blocked, unblocked
from fp4lab.kernels.quantize.scales import two_level
from tests.golden.arrays import Array, Ours
from tests.golden.computed import FUSED, Family, quantized, recorded_input

NAN_CODES = "codes of NaN, which E2M1 lacks: each tool stores another number, fp4lab 0"
NOT_FINITE = "blocks with NaN or infinity: the tool gives some a finite scale, fp4lab NaN"
WRAPPED = (
    "numbers of 7 times their scale and more: the tool does not limit them to 6, so the code wraps "
    "to that of -0 and the error between scales is that of 8"
)
BELOW_E8M0 = "scale bytes of exponents below -127, which ggml lets wrap"


def pairs(mask_MK: Tensor) -> NDArray[np.bool_]:
    """Bytes of packed codes in which one is marked."""
    return (mask_MK[:, ::2] | mask_MK[:, 1::2]).numpy()


def codes(x: str, fmt: BlockFormat, h: f.Hadamard | None = None) -> Ours:
    q = quantized(x, fmt, -1, h)
    nan = fp4lab.fake_quantize(recorded_input(x).float(), fmt, ragged="pad").isnan()
    if not nan.any():
        return Ours(array=q.codes.numpy())
    return Ours(array=q.codes.numpy(), skip=pairs(nan), why=NAN_CODES)


def part(q: fp4lab.QuantizedTensor, name: str) -> Ours:
    """Scales, tensor scale or values; NaN is where a tool has one."""
    if name == "deq":
        return Ours(array=q.dequantize().numpy())
    if name == "scale":
        return Ours(array=q.scales.numpy(), element=f.E4M3)
    return Ours(array=q.tensor_scale.numpy())


# torchao


def torchao(x: str, levels: str, name: str) -> Ours:
    fmt = f.NVFP4_TORCHAO_ONE_LEVEL if levels == "one_level" else f.NVFP4_TORCHAO
    if name == "codes":
        return codes(x, fmt)
    q = quantized(x, fmt)
    if name == "scale" and levels == "two_level_swizzled":
        tiles = fp4lab.swizzle_128x4(q.scales)
        shape = (tiles.shape[0] // 4, tiles.shape[1] * 4)
        return Ours(array=tiles.view(shape).numpy(), element=f.E4M3)
    ours = part(q, name)
    return Ours(array=ours.array.reshape(())) if name == "per_tensor_scale" else ours


# compressed-tensors


def compressed_tensors(x: str, name: str) -> Ours:
    """Scales are computed in the tensor's dtype."""
    bf16 = recorded_input(x).dtype == torch.bfloat16
    fmt = f.NVFP4_COMPRESSED_TENSORS_BF16 if bf16 else f.NVFP4_COMPRESSED_TENSORS
    q = quantized(x, fmt)
    return Ours(array=q.codes.numpy()) if name == "codes" else part(q, name)


def mx(x: str, fmt: BlockFormat, name: str) -> Ours:
    q = quantized(x, fmt)
    nan = q.scales.numpy() == f.E8M0.nan_code
    array = {"scale": q.scales, "codes": q.codes, "data": q.codes}.get(name)
    if name == "deq":
        array = q.dequantize()
    elif name == "fp_values":
        array = decode(q.codes, fmt.element)
    assert array is not None
    if not nan.any():
        return Ours(array=array.numpy(), element=fmt.element if name == "data" else None)
    skip = nan if name == "scale" else nan.repeat(array.shape[1] // nan.shape[1], axis=1)
    return Ours(array=array.numpy(), skip=skip, why=NOT_FINITE)


def compressed_tensors_mx(x: str, element: str, name: str) -> Ours:
    kinds = {"mxfp4": f.MXFP4_COMPRESSED_TENSORS, "mxfp8": f.MXFP8_COMPRESSED_TENSORS}
    return mx(x, kinds[element], name)


# ModelOpt


def modelopt(x: str, name: str) -> Ours:
    if name == "codes":
        return codes(x, f.NVFP4_MODELOPT)
    ours = part(quantized(x, f.NVFP4_MODELOPT), name)
    return Ours(array=ours.array.reshape(())) if name == "scale_2" else ours


def modelopt_mxfp4(x: str, name: str) -> Ours:
    """Its blocks run over the ends of rows: it quantizes the tensor as rows of 32."""
    values = recorded_input(x)
    q = fp4lab.quantize(values.reshape(-1, 32), f.MXFP4_MODELOPT)
    nan = q.scales.numpy() == f.E8M0.nan_code
    if name == "scale":
        return Ours(array=q.scales.numpy(), skip=nan, why=NOT_FINITE * bool(nan.any()))
    if name == "deq":
        return Ours(array=q.dequantize().view(values.shape).numpy())
    shape = (values.shape[0], values.shape[1] // 2)
    skip = nan.repeat(16, axis=1).reshape(shape)
    array = q.codes.view(shape).numpy()
    return Ours(array=array, skip=skip, why=NOT_FINITE * bool(nan.any()))


def modelopt_mxfp8(x: str, name: str) -> Ours:
    return mx(x, f.MXFP8_E4M3, name)


# fouroversix

RULES = {
    "static_6": f.NVFP4_FOUROVERSIX_STATIC,
    "static_4": f.get("nvfp4_fouroversix_static_4"),
    "mse": f.NVFP4_FOUROVERSIX,
    "mae": f.get("nvfp4_fouroversix_mae"),
    "abs_max": f.get("nvfp4_fouroversix_abs_max"),
}


def fouroversix_format(block: str, rule: str) -> BlockFormat:
    return RULES[rule].replace(block={"1x16": (1, 16), "16x16": (16, 16)}[block])


def wrapped(x_MK: Tensor, fmt: BlockFormat) -> Tensor:
    """Numbers that exceed the largest code by a step: their blocks, where these have a choice."""
    blocks = blocked(x_MK.float(), fmt)
    block_amax, amax = amax_of_blocks(blocks), x_MK.float().abs().amax()
    chooses = fmt.selection != f.Selection.NONE
    found = torch.zeros(blocks.shape, dtype=torch.bool)
    for stretch in (1.0, 1.5) if chooses else (1.0,):
        scaled = (blocks * two_level(block_amax, amax, fmt, stretch).factor).abs()
        found |= (scaled >= 7) & scaled.isfinite()
    if chooses:
        found |= found.any(dim=3, keepdim=True).any(dim=1, keepdim=True)
    return unblocked(found, (x_MK.shape[0], x_MK.shape[1]))


def fouroversix(x: str, block: str, rht: str | None, rule: str, name: str) -> Ours:
    fmt = fouroversix_format(block, rule)
    h = f.Hadamard(16, f.NVFP4_SIGNS) if rht else None
    q = quantized(x, fmt, -1, h)
    if name == "amax":
        return Ours(array=q.amax.view(()).numpy())
    values = recorded_input(x)
    beyond = wrapped(values if h is None else hadamard(values, h), fmt)
    why = WRAPPED * bool(beyond.any())
    if name == "codes":
        return Ours(array=q.codes.numpy(), skip=pairs(beyond), why=why)
    # recorded for every row, whatever the height of a block
    assert fmt.block is not None
    scales = q.scales.repeat_interleave(fmt.block[0], 0).numpy()
    skip = beyond[:, ::16].numpy() if fmt.selection != f.Selection.NONE else None
    return Ours(array=scales, element=f.E4M3, skip=skip, why=why)


def fouroversix_mxfp4(x: str, name: str) -> Ours:
    return mx(x, f.MXFP4_FOUROVERSIX, name)


# ggml


def ggml(x: str, kind: str, name: str) -> Ours:
    """Scales of a block of 64 (32), then its codes: the first half of 16 (32) in low nibbles."""
    fmt, size, run = {"nvfp4": (f.NVFP4_GGML, 64, 16), "mxfp4": (f.MXFP4_GGML, 32, 32)}[kind]
    q = quantized(x, fmt)
    if name == "deq":
        return Ours(array=q.dequantize().numpy())
    runs = unpack_nibbles(q.codes, q.shape[1]).numpy().reshape(-1, size // run, 2, run // 2)
    packed = (runs[:, :, 0] | runs[:, :, 1] << 4).reshape(-1, size // 2)
    blocks = np.concatenate([q.scales.numpy().reshape(-1, size // run), packed], axis=1)
    if (x, kind) != ("subnormal", "mxfp4"):
        return Ours(array=blocks)
    skip = np.zeros(blocks.shape, bool)
    skip[:, 0] = True
    return Ours(array=blocks, skip=skip, why=BELOW_E8M0)


# qwantize


def qwantize(x: str, how: str, name: str) -> Ours:
    fmt = {"naive": f.NVFP4_QWANTIZE, "optimal": f.NVFP4_QWANTIZE_OPTIMAL}[how]
    q = quantized(x, fmt)
    values: Array = decode(unpack_nibbles(q.codes, q.shape[1]), f.E2M1).numpy()
    return Ours(array=q.scales.numpy() if name == "scale" else values)


FAMILIES = [
    Family(
        "torchao_nvfp4",
        r"(?P<x>\w+)/(?P<levels>one_level|two_level|two_level_swizzled)/"
        r"(?P<name>codes|scale|per_tensor_scale|deq)",
        torchao,
    ),
    Family(
        "compressed_tensors",
        r"(?P<x>\w+)/nvfp4a16/(?P<name>codes|scale|global_scale|deq)",
        compressed_tensors,
    ),
    Family(
        "compressed_tensors",
        r"(?P<x>\w+)/(?P<element>mxfp4|mxfp8)a16/(?P<name>codes|fp_values|scale|deq)",
        compressed_tensors_mx,
    ),
    Family("modelopt", r"(?P<x>\w+)/nvfp4/(?P<name>codes|scale|scale_2|deq)", modelopt),
    Family("modelopt", r"(?P<x>\w+)/mxfp4/(?P<name>codes|scale|deq)", modelopt_mxfp4),
    Family("modelopt", r"(?P<x>\w+)/mxfp8/(?P<name>data|scale|deq)", modelopt_mxfp8),
    Family(
        "fouroversix",
        r"(?P<x>\w+)/nvfp4_(?P<block>1x16|16x16)(?P<rht>_rht)?/(?P<rule>\w+)/"
        r"(?P<name>codes|scale|amax)",
        fouroversix,
    ),
    Family("fouroversix", r"(?P<x>\w+)/mxfp4/static_6/(?P<name>codes|scale)", fouroversix_mxfp4),
    Family("ggml", r"(?P<x>\w+)/(?P<kind>nvfp4|mxfp4)/(?P<name>blocks|deq)", ggml),
    Family("qwantize", r"(?P<x>\w+)/(?P<how>naive|optimal)_(?P<name>scale|fp_values)", qwantize),
]

_ALL_NAN = f"the whole tensor is NaN there: {NAN_CODES}"
_NO_AMAX = "a constant 1: MXFP4 has no second level"
_SUBNORMAL = "scales of float32 subnormals: the tool gives all of them 2^-126"

#: file, pattern of keys, reason
NOT_APPLICABLE = [
    ("torchao_nvfp4", r"(all_zero|nan_inf)/two_level/codes", _ALL_NAN),
    ("modelopt", r"(all_zero|nan_inf)/nvfp4/codes", _ALL_NAN),
    ("fouroversix", r"(subnormal|nan_inf)/nvfp4\w*/\w+/codes", _ALL_NAN),
    ("fouroversix", r"\w+/mxfp4/static_6/amax", _NO_AMAX),
    ("fouroversix", "subnormal/mxfp4/static_6/scale", _SUBNORMAL),
    ("fouroversix", "subnormal/nvfp4_1x16_rht/static_6/amax", FUSED),
]
