"""The Triton operators, or a skip of the module that imports this where Triton is missing.

And what all their tests do: put a tensor on the device as it is laid out, and compare bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed (it is there for Linux only)")

from fp4lab.formats import NVFP4_SIGNS, Hadamard
from fp4lab.kernels.hadamard import triton as hadamard
from fp4lab.kernels.matmul import triton as matmul
from fp4lab.kernels.matmul import triton_grouped, triton_scaled
from fp4lab.kernels.matmul.triton import Factor
from fp4lab.kernels.minifloat import triton as minifloat
from fp4lab.kernels.minifloat.reference import positive_nan_
from fp4lab.kernels.philox import triton as philox
from fp4lab.kernels.quantize import reference, triton_columns, triton_pair, triton_stored
from fp4lab.kernels.quantize import triton as quantize
from fp4lab.kernels.quantize.reference import Noise, Quantization
from fp4lab.kernels.triton import launch

__all__ = [
    "SIGNED",
    "Factor",
    "Noise",
    "Quantization",
    "hadamard",
    "launch",
    "matmul",
    "minifloat",
    "philox",
    "quantize",
    "reference",
    "triton_columns",
    "triton_grouped",
    "triton_pair",
    "triton_scaled",
    "triton_stored",
]

#: the transform of Transformer Engine's NVFP4 recipe
SIGNED = Hadamard(16, NVFP4_SIGNS)
STATE = torch.tensor([0xDEADBEEF, 456, 7, 0xFFFFFFFF])
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def on(device: str, x: Tensor) -> Tensor:
    """x on the device, with its strides and offset, and its neighbours in memory."""
    size = x.untyped_storage().nbytes() // x.element_size()
    everything = x.as_strided((size,), (1,), 0).to(device)
    return everything.as_strided(x.shape, x.stride(), x.storage_offset())


def asked_on(device: str, asked: Quantization) -> Quantization:
    """The same quantization with all tensors on the device."""
    noise = asked.noise
    if noise is not None:
        ids = None if noise.row_ids is None else noise.row_ids.to(device)
        noise = noise._replace(state=noise.state.to(device), row_ids=ids)
    amax = None if asked.amax is None else asked.amax.to(device)
    return asked._replace(x_MK=on(device, asked.x_MK), noise=noise, amax=amax)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Equal shapes, dtypes and bytes, NaN included."""
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    integers = _INTEGERS[one.element_size()]
    return torch.equal(*(t.cpu().contiguous().view(integers) for t in (one, other)))


def canonical(x: Tensor) -> Tensor:
    """A copy with one NaN."""
    return positive_nan_(x.clone())


def expected(asked: Quantization) -> list[Tensor]:
    """By the reference, on the CPU: codes, scales, amax, values in x's dtype, operand, epilogue."""
    fmt, shape = asked.format, asked.shape
    encoded = reference.encoded(asked)
    values = canonical(reference.dequantized(encoded, fmt, shape).to(asked.x_MK.dtype))
    stored = reference.codes_and_scales(encoded, fmt, shape)
    return [*stored, values, *reference.operand(encoded, fmt, shape)]


def computed(asked: Quantization) -> list[Tensor]:
    """The same by the kernels."""
    assert quantize.takes(asked)
    stored = quantize.codes_and_scales(asked)
    return [*stored, quantize.dequantized(asked, asked.x_MK.dtype), *quantize.operand(asked)]


def check(device: str, cases: Sequence[Quantization]) -> None:
    """Every result of every case equals the reference's."""
    assert cases
    for asked in cases:
        results = zip(computed(asked_on(device, asked)), expected(asked), strict=True)
        different = [index for index, pair in enumerate(results) if not same_bits(*pair)]
        assert not different, (different, asked._replace(x_MK=asked.x_MK.shape))


def noise(bits: int, stream: int = 3, column_offset: int = 0) -> Noise | None:
    """Noise of this many bits; None for 0."""
    return Noise(STATE, stream, bits, None, column_offset) if bits else None


def generator(seed: int) -> torch.Generator:
    """A seeded generator."""
    return torch.Generator().manual_seed(seed)
