"""fp4lab: training in 4- and 8-bit floating point, emulated bit for bit on any machine.

>>> import torch, fp4lab
>>> from fp4lab import formats
>>> x = torch.randn(64, 128)
>>> q = fp4lab.quantize(x, formats.NVFP4)       # codes, block scales, amax
>>> fp4lab.error(x, formats.NVFP4).sqnr_db > 18
True
"""

from fp4lab import formats, nn, recipes
from fp4lab.errors import InputError, NonFiniteError
from fp4lab.functional import (
    Error,
    cast,
    dequantize,
    error,
    fake_quantize,
    noise_state,
    quantize,
    scaled_matmul,
    swizzle_128x4,
    unswizzle_128x4,
)
from fp4lab.tensor import QuantizedTensor, load, save

__version__ = "0.1.0"

__all__ = [
    "Error",
    "InputError",
    "NonFiniteError",
    "QuantizedTensor",
    "cast",
    "dequantize",
    "error",
    "fake_quantize",
    "formats",
    "load",
    "nn",
    "noise_state",
    "quantize",
    "recipes",
    "save",
    "scaled_matmul",
    "swizzle_128x4",
    "unswizzle_128x4",
]
