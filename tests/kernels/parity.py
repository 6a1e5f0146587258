"""What backends are compared on, and how: to the last bit and stride."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from fp4lab import formats as f
from fp4lab.functional import noise_state

SHAPES = ((64, 96), (48, 33), (5, 160), (1, 16), (16, 1), (130, 70), (33, 300))
TRANSFORMS = (None, f.Hadamard(16, f.NVFP4_SIGNS), f.Hadamard(32))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CASES = list(itertools.product(SHAPES, (False, True), (0, 8, 32), TRANSFORMS, DTYPES))
STATE = noise_state(7, "layer", step=3, microbatch=1)
#: fields that no registered format has
DECLARED = [
    f.NVFP4.replace(name="target", amax_target=6 * 16 / 17),
    f.NVFP4.replace(name="cap", scale_cap=256.0),
    f.NVFP4.replace(name="little", scale_cap=1e-4),
    f.NVFP4.replace(name="floor", scale_floor=2.0**-6, zero_scale=0.125),
    f.NVFP4_ROWWISE.replace(name="ue5m3", scale=f.UE5M3),
    f.NVFP4.replace(name="int4", element=f.INT4, block=(1, 24)),
    f.NVFP4.replace(name="ties", ties=f.Ties.AWAY, scale_ties=f.Ties.ZERO),
    f.NVFP4_16X16.replace(name="to_zero", ties=f.Ties.ZERO, keep_negative_zero=True),
    f.NVFP4_4OVER6.replace(name="mse", selection=f.Selection.MSE, block=(4, 8)),
    f.NVFP4_ONE_LEVEL.replace(name="bf16_ratio", scale_precision=f.BF16_ELEMENT),
    f.NVFP4_ONE_LEVEL.replace(name="bf16_scale", scale=f.BF16_ELEMENT),
    f.MXFP8_E5M2.replace(name="special", overflow=f.Overflow.SPECIAL, block=(2, 32)),
    f.MXFP4.replace(name="fp16_element", element=f.FP16_ELEMENT),
    f.MXFP4.replace(name="bf16_element", element=f.BF16_ELEMENT),
    f.NVFP4.replace(name="whole_row", block=(1, f.WHOLE)),
    f.FP8_TENSOR_E4M3.replace(name="tall", block=(f.WHOLE, 16)),
    f.BlockFormat(name="e4m3_cast", element=f.E4M3),
]
FORMATS = [*map(f.get, f.names()), *DECLARED]


def bits(x: Tensor) -> Tensor:
    x = x.contiguous()
    return (
        x if not x.is_floating_point() else x.view(torch.int32 if x.itemsize == 4 else torch.int16)
    )


def same(one: Tensor, other: Tensor) -> bool:
    """Equal bits, NaN included, and equal layout."""
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and (1 in one.shape or one.stride() == other.stride())
        and torch.equal(bits(one), bits(other))
    )
