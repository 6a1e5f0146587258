"""Every format against the numpy restatement: codes, scales, amax and dequantized values."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fp4lab
from fp4lab import formats as f
from fp4lab.formats import BlockFormat, BlockScale, Level, Rounding, Selection, Ties
from fp4lab.kernels import backends
from fp4lab.kernels.layout.reference import unpack_nibbles
from fp4lab.kernels.minifloat.reference import decode
from fp4lab.kernels.philox.reference import random_bits
from tests.kernels import block_oracle
from tests.kernels.inputs import same
from tests.kernels.matrices import matrices

REGISTERED = [f.get(name) for name in f.names() if f.get(name).block is not None]
NVFP4 = [fmt for fmt in REGISTERED if fmt.name.startswith("nvfp4")]
MX = [fmt for fmt in REGISTERED if fmt.name.startswith("mx")]
FP8 = [fmt for fmt in REGISTERED if fmt.name.startswith("fp8")]
#: conventions of other tools, and what a user might declare
DECLARED = [
    f.NVFP4_ONE_LEVEL.replace(block_scale=BlockScale.FOLDED),
    f.NVFP4.replace(block_scale=BlockScale.DIVIDED, scale_floor=2.0**-6),
    f.NVFP4.replace(zero_scale=0.125, ties=Ties.AWAY),
    f.NVFP4.replace(ties=Ties.ZERO, keep_negative_zero=True, scale_cap=256.0),
    f.NVFP4.replace(scale_ties=Ties.AWAY),
    f.NVFP4_ONE_LEVEL.replace(scale_ties=Ties.ZERO),
    f.NVFP4.replace(block_scale=BlockScale.DIVIDED, scale_precision=f.BF16_ELEMENT),
    f.NVFP4_4OVER6.replace(scale_precision=f.FP16_ELEMENT),
    f.NVFP4.replace(block=(4, 8)),
    f.NVFP4.replace(block=(1, f.WHOLE)),
    f.NVFP4.replace(element=f.INT4),
    f.NVFP4.replace(element=f.E1M2, scale=f.UE4M3, level=Level.ROW),
    f.NVFP4.replace(element=f.E3M2, scale=f.UE5M3),
    f.NVFP4.replace(scale=f.BF16_ELEMENT, level=Level.NONE),
    f.NVFP4.replace(scale=f.FP32, level=Level.NONE, block_scale=BlockScale.DIVIDED),
    f.NVFP4_4OVER6.replace(selection=Selection.MSE, scale_cap=448.0, level=Level.ROW),
    f.NVFP4_4OVER6.replace(selection=Selection.MSE, level=Level.NONE, block=(8, 4)),
    f.MXFP4.replace(block=(32, 32)),
    f.MXFP4.replace(keep_negative_zero=False, ties=Ties.AWAY),
    f.MXFP4.replace(element=f.INT4, block=(2, 16)),
    f.MXFP4.replace(scale=f.ElementType("e5m0", 5, 0, 15, f.Specials.NAN, False, False)),
    f.FP8_ROW_E4M3.replace(element=f.E2M3, zero_scale=0.0),
    f.FP8_1X128_E4M3.replace(block=(4, 4), keep_negative_zero=False, ties=Ties.ZERO),
    f.NVFP4_FOUROVERSIX.replace(selection=Selection.ABS_MAX, block=(16, 16)),
    f.NVFP4_4OVER6.replace(selection=Selection.ABS_MAX, level=Level.ROW),
    f.NVFP4_FOUROVERSIX_STATIC.replace(level=Level.NONE),
    f.NVFP4_TORCHAO.replace(block=(16, 16), scale_floor=0.0),
    f.NVFP4_MODELOPT.replace(level=Level.ROW, zero_scale=0.0),
    f.NVFP4_COMPRESSED_TENSORS.replace(level=Level.ROW, scale_precision=f.FP16_ELEMENT),
    f.NVFP4_QWANTIZE_OPTIMAL.replace(block=(2, 8), zero_scale=1.0, scale=f.E5M2),
    f.NVFP4.replace(zeros=f.Zeros.NEGATIVE, keep_negative_zero=True),
    f.MXFP6_E2M3.replace(scale_rule=f.ScaleRule.EVEN_FP4, zeros=f.Zeros.POSITIVE),
]


def check(x: Tensor, fmt: BlockFormat, axis: int, rounding: Rounding = Rounding.NEAREST) -> None:
    state, bits = fp4lab.noise_state(1, "layer", step=2), rounding.noise_bits
    how: dict[str, Any] = {"axis": axis, "ragged": "pad", "rounding": rounding, "noise": state}
    matrix, random = (x if axis == -1 else x.t()).numpy(), None
    if bits:
        # drawn for x as it is stored, and turned with it
        noise = random_bits(*x.shape, state, stream=3, bits=bits)
        random = (noise if axis == -1 else noise.t()).to(torch.int64).numpy()
    expected = block_oracle.quantize(matrix, fmt, random, bits)
    for backend in (nullcontext(), backends.backend("reference")):
        with backend:
            q = fp4lab.quantize(x, fmt, stream=3, **how)
            same(fp4lab.fake_quantize(x, fmt, stream=3, **how), q.dequantize())
        compare(q, expected)


def compare(q: fp4lab.QuantizedTensor, expected: block_oracle.Quantized) -> None:
    fmt, columns = q.format, q.matrix_shape[1]
    codes = unpack_nibbles(q.codes, columns) if fmt.packed else q.codes
    values = expected.values
    if fmt.element.nan_code is None:
        values = np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)
    same(decode(codes, fmt.element), values)
    assert fmt.scale is not None
    scales = q.scales if fmt.scale == f.FP32 else decode(q.scales, fmt.scale)
    same(scales, expected.scales)
    same(q.tensor_scale, expected.tensor_scale)
    whole = q.dequantize() if q.axis == -1 else q.dequantize().t()
    if not np.isnan(expected.values).any():
        same(whole, expected.dequantized)


@pytest.mark.parametrize("fmt", NVFP4, ids=lambda fmt: fmt.name)
@settings(max_examples=25)
@given(matrices(), st.sampled_from([-1, -2]))
def test_nvfp4(fmt: BlockFormat, x: Tensor, axis: int) -> None:
    check(x, fmt, axis)


@settings(max_examples=100)
@given(st.sampled_from(MX), matrices(), st.sampled_from([-1, -2]))
def test_mx(fmt: BlockFormat, x: Tensor, axis: int) -> None:
    check(x, fmt, axis)


@settings(max_examples=100)
@given(st.sampled_from(FP8), matrices(), st.sampled_from([-1, -2]))
def test_fp8(fmt: BlockFormat, x: Tensor, axis: int) -> None:
    check(x, fmt, axis)


@settings(max_examples=100)
@given(st.sampled_from(DECLARED), matrices(), st.sampled_from([-1, -2]))
def test_declared_formats(fmt: BlockFormat, x: Tensor, axis: int) -> None:
    check(x, fmt, axis)


@settings(max_examples=100)
@given(
    st.sampled_from(REGISTERED + DECLARED),
    matrices(),
    st.sampled_from([-1, -2]),
    st.sampled_from([Rounding.STOCHASTIC_8, Rounding.STOCHASTIC_32]),
)
def test_stochastic_rounding(fmt: BlockFormat, x: Tensor, axis: int, rounding: Rounding) -> None:
    check(x, fmt, axis, rounding)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", REGISTERED + DECLARED, ids=lambda fmt: fmt.name)
@settings(max_examples=30)
@given(matrices(), st.sampled_from([-1, -2]), st.sampled_from(Rounding))
def test_every_format_at_length(fmt: BlockFormat, x: Tensor, axis: int, rounding: Rounding) -> None:
    check(x, fmt, axis, rounding)
