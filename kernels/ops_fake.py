# mypy: disable-error-code="untyped-decorator"
"""Shapes, dtypes and strides of the operators' results, for compilers and the meta device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fp4lab.kernels.quantize import reference
from fp4lab.kernels.schema import Quantizer, dense, format_of, library, quantizer_of


def _describes(name: str) -> Callable[[Any], Any]:
    described: Callable[[Any], Any] = torch.library.register_fake(f"fp4lab::{name}", lib=library)
    return described


def _shape(x: Tensor, how: Quantizer) -> tuple[int, int]:
    return (x.shape[1], x.shape[0]) if how.transposed else (x.shape[0], x.shape[1])


@_describes("quantize")
def _quantize_fake(x: Tensor, quantizer: str, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    how = quantizer_of(quantizer)
    fmt, shape = how.format, _shape(x, how)
    return (
        x.new_empty(reference.codes_shape(fmt, *shape), dtype=reference.code_dtype(fmt.element)),
        x.new_empty(reference.scales_shape(fmt, *shape), dtype=reference.scales_dtype(fmt)),
        x.new_empty(reference.amax_shape(fmt, shape[0]), dtype=torch.float32),
    )


@_describes("fake_quantize")
def _fake_quantize_fake(x: Tensor, quantizer: str, *_: object) -> Tensor:
    how = quantizer_of(quantizer)
    return dense(x.new_empty(_shape(x, how)), how.transposed)


@_describes("operand")
def _operand_fake(
    x: Tensor, quantizer: str, dtype: torch.dtype, turned: bool, *_: object
) -> tuple[Tensor, Tensor]:
    how = quantizer_of(quantizer)
    rows, columns = _shape(x, how)
    values = dense(x.new_empty((rows, columns), dtype=dtype), how.transposed and not turned)
    return values, x.new_empty(reference.epilogue_shape(how.format, rows), dtype=torch.float32)


@_describes("operand_pair")
def _operand_pair_fake(
    x: Tensor, quantizer: str, quantizer_t: str, dtype: torch.dtype, turned: bool, *_: object
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = (_operand_fake(x, one, dtype, turned) for one in (quantizer, quantizer_t))
    return *rows, *columns


@_describes("amax")
def _amax_fake(x: Tensor, quantizer: str) -> Tensor:
    how = quantizer_of(quantizer)
    shape = reference.amax_shape(how.format, _shape(x, how)[0])
    return x.new_empty(shape, dtype=torch.float32)


@_describes("dequantize")
def _dequantize_fake(
    codes: Tensor, scales: Tensor, tensor_scale: Tensor, format: str, K: int, dtype: torch.dtype
) -> Tensor:
    return codes.new_empty((codes.shape[0], K), dtype=dtype)


@_describes("stored_operand")
def _stored_operand_fake(
    codes: Tensor, scales: Tensor, tensor_scale: Tensor, format: str, K: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    values = codes.new_empty((codes.shape[0], K), dtype=dtype)
    shape = reference.epilogue_shape(format_of(format), codes.shape[0])
    return values, codes.new_empty(shape, dtype=torch.float32)


@_describes("cast")
def _cast_fake(x: Tensor, element: str, ties: int, overflow: int) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.float32)


@_describes("hadamard")
def _hadamard_fake(x: Tensor, transform: str, dim: int) -> Tensor:
    return x.new_empty(x.shape)


@_describes("random_bits")
def _random_bits_fake(
    state: Tensor, rows: int, columns: int, stream: int, bits: int, *_: object
) -> Tensor:
    return state.new_empty((rows, columns), dtype=torch.uint8 if bits == 8 else torch.int64)


@_describes("matmul")
def _matmul_fake(a: Tensor, b: Tensor, alpha: Tensor | None, dtype: torch.dtype) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype)


@_describes("grouped_matmul")
def _grouped_matmul_fake(
    a: Tensor, b: Tensor, alpha: Tensor | None, row_counts: Tensor, dtype: torch.dtype
) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype)


@_describes("packed_matmul")
def _packed_matmul_fake(x: Tensor, codes: Tensor, *_: object) -> Tensor:
    return x.new_empty((x.shape[0], codes.shape[0]), dtype=torch.float32)


@_describes("stored_matmul")
def _stored_matmul_fake(
    a: Tensor,
    a_scales: Tensor,
    a_tensor_scale: Tensor,
    a_format: str,
    b: Tensor,
    b_scales: Tensor,
    b_tensor_scale: Tensor,
    b_format: str,
    K: int,
    dtype: torch.dtype,
) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype)
