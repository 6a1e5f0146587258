"""Dequantization, exhaustively: every code times every scale, in float32 and in the right order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fp4lab import QuantizedTensor, dequantize
from fp4lab import formats as f
from fp4lab.formats import BlockFormat, Level
from fp4lab.kernels.layout.reference import pack_nibbles
from tests.kernels.inputs import same

FORMATS = [
    f.NVFP4,
    f.NVFP4_ONE_LEVEL,
    f.NVFP4.replace(element=f.INT4),
    f.NVFP4.replace(scale=f.UE5M3),
    f.NVFP4.replace(element=f.E1M2, scale=f.UE4M3),
    f.NVFP4.replace(element=f.E4M3),
    f.NVFP4_4OVER6,
    f.MXFP4,
    f.MXFP6_E2M3,
    f.MXFP6_E3M2,
    f.MXFP8_E4M3,
    f.MXFP8_E5M2,
]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: f"{fmt.element.name}-{fmt.name}")
def test_every_code_times_every_scale(fmt: BlockFormat) -> None:
    """element * ((block scale * amax) * fl(1 / (C M))): one row for each scale byte."""
    assert fmt.scale is not None
    assert fmt.block is not None
    num_codes, num_scales = 1 << fmt.element.bits, 1 << fmt.scale.bits
    width = max(num_codes, fmt.block[1])
    codes = (torch.arange(width) % num_codes).to(torch.uint8).expand(num_scales, -1)
    scales = (
        torch.arange(num_scales, dtype=torch.uint8).view(-1, 1).expand(-1, width // fmt.block[1])
    )
    elements = np.array([fmt.element.decode(c) for c in range(num_codes)], np.float32)
    values = np.array([fmt.scale.decode(s) for s in range(num_scales)], np.float32)
    for amax in (1.0, 2688.0, 3.1415927, 1e-30, 3e38) if fmt.level == Level.TENSOR else (0.0,):
        whole = values
        if fmt.level == Level.TENSOR:
            with np.errstate(over="ignore"):
                whole = values * np.float32(amax) * np.float32(1 / fmt.amax_factor)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = elements[codes[0].numpy()] * whole[:, None]
        q = QuantizedTensor(
            pack_nibbles(codes) if fmt.packed else codes,
            scales,
            torch.tensor([amax] if fmt.level == Level.TENSOR else []),
            fmt,
            codes.shape,
        )
        same(dequantize(q), expected)


def test_every_16_bit_code_is_its_own_value() -> None:
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(256, 256)
    for fmt, dtype in ((f.BF16, torch.bfloat16), (f.FP16, torch.float16)):
        q = QuantizedTensor(bits, torch.zeros(0, 0), torch.zeros(0), fmt, bits.shape)
        same(dequantize(q), bits.view(dtype).to(torch.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_the_result_is_rounded_once_to_the_wanted_dtype(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(8, 32)
    scales = torch.tensor([[127], [120], [130], [110], [100], [140], [1], [200]], dtype=torch.uint8)
    q = QuantizedTensor(codes, scales, torch.zeros(0), f.MXFP8_E4M3, codes.shape)
    assert torch.equal(dequantize(q, dtype).nan_to_num(-1), dequantize(q).to(dtype).nan_to_num(-1))
