"""The operators' schemas in `torch.library`, and how a flat argument becomes an object again.

Schemas are flat (tensors, numbers, and text that defines formats), so a model that uses the
operators compiles with `fullgraph=True`. Quantizers take the matrix `x` as it is stored, `[M, K]`
row-major in meaning (any strides), and the same description of how it is quantized:

    quantizer        text of a `Quantizer`: format, whether the operand is x^T, transform, noise
    state, stream    where noise comes from (int64 `[4]`), where there is any
    row_ids, column_offset    global rows (int64 `[M]`) and first column of the stored matrix
    amax             second-level amax to use instead of the operand's own, whatever is stored

The operand is x, or x^T `[K, M]`; blocks and the transform run along its columns. Of an operand,

    quantize         gives codes, contiguous, block scales and what the second level stores
    fake_quantize    values in x's dtype, laid out as x is stored
    operand          values times block scales, and what is left for the epilogue of a product; x^T
                     is laid out as x is stored, or `turned` to be contiguous
    amax             the second-level amax that it would get

`operand_pair` is the operand of x and that of x^T, its arguments with `_t`, from one read of x.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fp4lab.formats import (
    BlockFormat,
    BlockScale,
    ElementType,
    Hadamard,
    ScaleRule,
    Selection,
    Zeros,
)

#: the dtypes that C and Triton read and write, and what both call them (native/common.h)
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
#: the orders of arithmetic that C and Triton know; torch computes the others on any device
_COMPILED = (BlockScale.FOLDED, BlockScale.DIVIDED, BlockScale.POWER_OF_TWO, BlockScale.ENCODE)

_NOISE = "Tensor? state=None, int stream=0, Tensor? row_ids=None, int column_offset=0"
_QUANTIZER = f"{_NOISE}, Tensor? amax=None"

library = torch.library.Library("fp4lab", "DEF")
library.define(f"quantize(Tensor x, str quantizer, {_QUANTIZER}) -> (Tensor, Tensor, Tensor)")
library.define(f"fake_quantize(Tensor x, str quantizer, {_QUANTIZER}) -> Tensor")
library.define(
    f"operand(Tensor x, str quantizer, ScalarType dtype, bool turned, {_QUANTIZER})"
    " -> (Tensor, Tensor)"
)
library.define(
    "operand_pair(Tensor x, str quantizer, str quantizer_t, ScalarType dtype, bool turned, "
    "Tensor? state=None, int stream=0, int stream_t=0, Tensor? row_ids=None, int column_offset=0, "
    "Tensor? amax=None, Tensor? amax_t=None) -> (Tensor, Tensor, Tensor, Tensor)"
)
_STORED = "Tensor codes, Tensor scales, Tensor tensor_scale, str format, int K, ScalarType dtype"
library.define(f"dequantize({_STORED}) -> Tensor")
library.define(f"stored_operand({_STORED}) -> (Tensor, Tensor)")
library.define("amax(Tensor x, str quantizer) -> Tensor")
library.define("cast(Tensor x, str element, int ties, int overflow) -> Tensor")
library.define("hadamard(Tensor x, str transform, int dim) -> Tensor")
library.define(
    "random_bits(Tensor state, int rows, int columns, int stream, int bits, "
    "Tensor? row_ids=None, int column_offset=0) -> Tensor"
)
library.define("matmul(Tensor a, Tensor b, Tensor? alpha, ScalarType dtype) -> Tensor")
library.define(
    "grouped_matmul(Tensor a, Tensor b, Tensor? alpha, Tensor row_counts, ScalarType dtype)"
    " -> Tensor"
)
library.define(
    "packed_matmul(Tensor x, Tensor codes, Tensor scales, Tensor tensor_scale, str format, "
    "bool int8) -> Tensor"
)
library.define(
    "stored_matmul(Tensor a, Tensor a_scales, Tensor a_tensor_scale, str a_format, Tensor b, "
    "Tensor b_scales, Tensor b_tensor_scale, str b_format, int K, ScalarType dtype) -> Tensor"
)


class Quantizer(NamedTuple):
    """How a matrix is quantized."""

    format: BlockFormat
    transposed: bool = False
    hadamard: Hadamard | None = None
    noise_bits: int = 0

    @property
    def text(self) -> str:
        """As operators take it (`quantizer_of` inverts it)."""
        fmt, transposed, hadamard, noise_bits = self
        transform = "" if hadamard is None else hadamard.definition
        return f"{fmt.definition} {transposed:d} {noise_bits} {transform}"


@lru_cache(maxsize=1024)
def quantizer_of(text: str) -> Quantizer:
    """The one of this text."""
    fmt, transposed, noise_bits, transform = text.split(" ")
    # one of size 1 without signs is none, which leaves -0 as it is
    hadamard = None if transform in ("", "1") else transform_of(transform)
    return Quantizer(format_of(fmt), transposed == "1", hadamard, int(noise_bits))


@lru_cache(maxsize=256)
def is_compiled(fmt: BlockFormat) -> bool:
    """Whether C and Triton know the format's arithmetic."""
    return (
        fmt.block_scale in _COMPILED
        and fmt.scale_rule != ScaleRule.EVEN_FP4
        and fmt.selection <= Selection.MSE
        and fmt.zeros == Zeros.SIGNED
    )


format_of = lru_cache(maxsize=256)(BlockFormat.from_definition)
element_of = lru_cache(maxsize=256)(ElementType.from_definition)
transform_of = lru_cache(maxsize=256)(Hadamard.from_definition)


def dense(values: Tensor, transposed: bool) -> Tensor:
    """Row-major, or column-major for a transposed operand; a copy only where it is needed."""
    return values.t().contiguous().t() if transposed else values.contiguous()
