"""What `fp4lab` itself names: its `__init__` imports this module when one of the names is used."""

from fp4lab import formats, nn, recipes
from fp4lab.errors import InputError, NonFiniteError
from fp4lab.functional import (
    Error,
    cast,
    dequantize,
    error,
    fake_quantize,
    grouped_scaled_matmul,
    noise_state,
    packed_linear,
    quantize,
    scaled_matmul,
    swizzle_128x4,
    unswizzle_128x4,
)
from fp4lab.kernels.backends import backend
from fp4lab.nn import convert, disabled, set_recipe, set_step, unconvert
from fp4lab.tensor import QuantizedTensor, load, save

__all__ = [
    "Error",
    "InputError",
    "NonFiniteError",
    "QuantizedTensor",
    "backend",
    "cast",
    "convert",
    "dequantize",
    "disabled",
    "error",
    "fake_quantize",
    "formats",
    "grouped_scaled_matmul",
    "load",
    "nn",
    "noise_state",
    "packed_linear",
    "quantize",
    "recipes",
    "save",
    "scaled_matmul",
    "set_recipe",
    "set_step",
    "swizzle_128x4",
    "unconvert",
    "unswizzle_128x4",
]
