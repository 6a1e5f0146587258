"""The operators' schemas in `torch.library`, and how a flat argument becomes an object again.

Schemas are flat (tensors and integers), so a model that uses the operators compiles with
`fullgraph=True`. Quantizers take the matrix `x` as it is stored, `[M, K]` row-major in meaning (any
strides), and the same description of how it is quantized:

    format          `BlockFormat.ints`
    transposed      quantize x^T (blocks and Hadamard run along M); results are `[K, M]`, values
                    with the strides of x^T (`turned`: contiguous), codes contiguous
    hadamard, signs size of the Hadamard transform (1: none) and its signs (empty: none)
    noise_bits      0 nearest, 8 or 32 stochastic, with `state` (int64 `[4]`), `stream`, global
                    `row_ids` (int64 `[M]`) and `column_offset` of the stored matrix
    amax            second-level amax to use instead of the operand's own

`operand_pair` is the operand of x and that of x^T, its arguments with `_t`, from one read of x.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from fp4lab.formats import BlockFormat, ElementType

_QUANTIZER = (
    "Tensor x, int[] format, bool transposed, int hadamard, int[] signs, int noise_bits, "
    "Tensor? state, int stream, Tensor? row_ids, int column_offset, Tensor? amax"
)

library = torch.library.Library("fp4lab", "DEF")
library.define(f"quantize({_QUANTIZER}) -> (Tensor, Tensor, Tensor)")
library.define(f"fake_quantize({_QUANTIZER}) -> Tensor")
library.define(f"operand({_QUANTIZER}, ScalarType dtype, bool turned) -> (Tensor, Tensor)")
library.define(
    "operand_pair(Tensor x, int[] format, int hadamard, int[] signs, int noise_bits, int stream, "
    "int[] format_t, int hadamard_t, int[] signs_t, int noise_bits_t, int stream_t, "
    "Tensor? state, Tensor? row_ids, int column_offset, Tensor? amax, Tensor? amax_t, "
    "ScalarType dtype, bool turned) -> (Tensor, Tensor, Tensor, Tensor)"
)
_STORED = "Tensor codes, Tensor scales, Tensor amax, int[] format, int K, ScalarType dtype"
library.define(f"dequantize({_STORED}) -> Tensor")
library.define(f"stored_operand({_STORED}) -> (Tensor, Tensor)")
library.define("amax(Tensor x, int[] format, bool transposed, int hadamard, int[] signs) -> Tensor")
library.define("cast(Tensor x, int[] element, int ties, int overflow) -> Tensor")
library.define("hadamard(Tensor x, int size, int[] signs, int dim) -> Tensor")
library.define(
    "random_bits(Tensor state, int rows, int columns, int stream, int bits, Tensor? row_ids, "
    "int column_offset) -> Tensor"
)
library.define("matmul(Tensor a, Tensor b, Tensor? alpha, ScalarType dtype) -> Tensor")
library.define(
    "grouped_matmul(Tensor a, Tensor b, Tensor? alpha, Tensor row_counts, ScalarType dtype)"
    " -> Tensor"
)
library.define(
    "packed_matmul(Tensor x, Tensor codes, Tensor scales, Tensor amax, int[] format, bool int8)"
    " -> Tensor"
)
library.define(
    "stored_matmul(Tensor a, Tensor a_scales, Tensor a_amax, int[] a_format, Tensor b, "
    "Tensor b_scales, Tensor b_amax, int[] b_format, int K, ScalarType dtype) -> Tensor"
)


def format_of(ints: list[int]) -> BlockFormat:
    """The format of these integers."""
    return _format_of(tuple(ints))


@lru_cache(maxsize=256)
def _format_of(ints: tuple[int, ...]) -> BlockFormat:
    return BlockFormat.from_ints(list(ints))


@lru_cache(maxsize=256)
def _element_of(ints: tuple[int, ...]) -> ElementType:
    return ElementType.from_ints(list(ints))


def element_of(ints: list[int]) -> ElementType:
    """The element type of these integers."""
    return _element_of(tuple(ints))


def dense(values: Tensor, transposed: bool) -> Tensor:
    """Row-major, or column-major for a transposed operand; a copy only where it is needed."""
    return values.t().contiguous().t() if transposed else values.contiguous()
