"""The functional face: quantize, multiply, cast and compare tensors; noise and scale layouts.

What is quantized may have any strides and leading dimensions, in float16, bfloat16, float32 or
float64 (rounded to float32 first), and is seen as the matrix of its last dimension: leading
dimensions are flattened to rows. `axis=-2` lets blocks run along those rows instead.
"""

from fp4lab.functional.arguments import check_ragged
from fp4lab.functional.measures import Error, compare, error
from fp4lab.functional.operations import (
    cast,
    dequantize,
    fake_quantize,
    noise_state,
    quantize,
)
from fp4lab.functional.products import grouped_scaled_matmul, packed_linear, scaled_matmul
from fp4lab.kernels.layout.reference import swizzle_128x4, unswizzle_128x4

__all__ = [
    "Error",
    "cast",
    "check_ragged",
    "compare",
    "dequantize",
    "error",
    "fake_quantize",
    "grouped_scaled_matmul",
    "noise_state",
    "packed_linear",
    "quantize",
    "scaled_matmul",
    "swizzle_128x4",
    "unswizzle_128x4",
]
