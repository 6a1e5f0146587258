"""fp4lab: training in 4- and 8-bit floating point, emulated bit for bit on any machine.

>>> import torch, fp4lab
>>> from fp4lab import formats
>>> x = torch.randn(64, 128)
>>> q = fp4lab.quantize(x, formats.NVFP4)       # codes, block scales, amax
>>> fp4lab.error(x, formats.NVFP4).sqnr_db > 18
True
"""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from fp4lab.studies import compare

__version__ = "0.1.0"

__all__ = [
    "Error",
    "InputError",
    "NonFiniteError",
    "QuantizedTensor",
    "backend",
    "cast",
    "compare",
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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    # training needs more libraries than quantizing does: they are imported where it is asked for
    if name == "compare":
        from fp4lab.studies import compare

        return compare
    raise AttributeError(f"module 'fp4lab' has no attribute {name!r}")
