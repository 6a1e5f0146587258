# mypy: disable-error-code="untyped-decorator"
"""The operators, as `schema.py` defines them and `ops_fake.py` describes their results.

To a compiler each is one opaque call: no pass can drop the rounding inside. A faster implementation
is chosen in an operator's `dispatch.py` and must equal the reference bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from fp4lab.formats import Overflow, Ties
from fp4lab.kernels import ops_fake  # noqa: F401  what results look like is registered there
from fp4lab.kernels.backends import with_denormals
from fp4lab.kernels.hadamard import dispatch as hadamard_dispatch
from fp4lab.kernels.matmul import dispatch as matmul_dispatch
from fp4lab.kernels.matmul import packed
from fp4lab.kernels.minifloat import dispatch as minifloat
from fp4lab.kernels.philox import dispatch as philox
from fp4lab.kernels.philox.reference import check_place
from fp4lab.kernels.quantize import dispatch, stored
from fp4lab.kernels.quantize.reference import Noise, Quantization, check_amax
from fp4lab.kernels.quantize.stored import checked
from fp4lab.kernels.schema import (
    Quantizer,
    dense,
    element_of,
    library,
    quantizer_of,
    transform_of,
)

Function = TypeVar("Function", bound=Callable[..., Any])


def _asked(
    x: Tensor,
    quantizer: Quantizer,
    state: Tensor | None = None,
    stream: int = 0,
    row_ids: Tensor | None = None,
    column_offset: int = 0,
    amax: Tensor | None = None,
) -> Quantization:
    fmt, transposed, hadamard, noise_bits = quantizer
    noise = None
    if noise_bits:
        assert state is not None
        check_place(x.shape[0], x.shape[1], row_ids, column_offset)
        noise = Noise(state, stream, noise_bits, row_ids, column_offset)
    if amax is not None:
        check_amax(amax, fmt, x.shape[transposed])
        # -0 is 0, and what is less is NaN
        amax = torch.where(amax < 0, torch.nan, amax.to(torch.float32).abs())
    return Quantization(x, fmt, transposed, hadamard, noise, amax)


def _implements(name: str) -> Callable[[Function], Function]:
    """Registers an operator; numbers below the smallest normal one are not flushed inside."""

    def register(function: Function) -> Function:
        library.impl(name, with_denormals(function), "CompositeExplicitAutograd")
        return function

    return register


def _multiplies(name: str, *, decodes: bool = False) -> Callable[[Function], Function]:
    """Registers a product, inside which autocast changes no dtype.

    What it decodes is not flushed; its sums are as the caller has set (`with_denormals`).
    """

    def register(function: Function) -> Function:
        @wraps(function)
        def inner(a: Tensor, *rest: Any) -> Any:
            if not torch.is_autocast_enabled(a.device.type):
                return function(a, *rest)
            with torch.autocast(a.device.type, enabled=False):
                return function(a, *rest)

        kept = with_denormals(inner) if decodes else inner
        library.impl(name, kept, "CompositeExplicitAutograd")
        return function

    return register


@_implements("quantize")
def _quantize_impl(x: Tensor, quantizer: str, *noise: Any) -> tuple[Tensor, Tensor, Tensor]:
    asked = _asked(x, quantizer_of(quantizer), *noise)
    codes, scales, tensor_scale = dispatch.codes_and_scales(asked)
    return codes.contiguous(), scales.contiguous(), tensor_scale


@_implements("fake_quantize")
def _fake_quantize_impl(x: Tensor, quantizer: str, *noise: Any) -> Tensor:
    asked = _asked(x, quantizer_of(quantizer), *noise)
    return dense(dispatch.dequantized(asked, x.dtype), asked.transposed)


@_implements("operand")
def _operand_impl(
    x: Tensor, quantizer: str, dtype: torch.dtype, turned: bool, *noise: Any
) -> tuple[Tensor, Tensor]:
    asked = _asked(x, quantizer_of(quantizer), *noise)
    return dispatch.operands([asked], dtype, turned)[0]


@_implements("operand_pair")
def _operand_pair_impl(
    x: Tensor,
    quantizer: str,
    quantizer_t: str,
    dtype: torch.dtype,
    turned: bool,
    state: Tensor | None = None,
    stream: int = 0,
    stream_t: int = 0,
    row_ids: Tensor | None = None,
    column_offset: int = 0,
    amax: Tensor | None = None,
    amax_t: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = _asked(x, quantizer_of(quantizer), state, stream, row_ids, column_offset, amax)
    columns = _asked(x, quantizer_of(quantizer_t), state, stream_t, row_ids, column_offset, amax_t)
    straight, across = dispatch.operands([rows, columns], dtype, turned)
    return *straight, *across


@_implements("amax")
def _amax_impl(x: Tensor, quantizer: str) -> Tensor:
    # which rounding does not change
    return dispatch.amax(_asked(x, quantizer_of(quantizer)._replace(noise_bits=0)))


@_implements("dequantize")
def _dequantize_impl(
    codes: Tensor, scales: Tensor, tensor_scale: Tensor, format: str, K: int, dtype: torch.dtype
) -> Tensor:
    return stored.dequantized(checked(codes, scales, tensor_scale, format, K), K, dtype)


@_implements("stored_operand")
def _stored_operand_impl(
    codes: Tensor, scales: Tensor, tensor_scale: Tensor, format: str, K: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    values, epilogue = stored.operand(checked(codes, scales, tensor_scale, format, K), K, dtype)
    # a copy, for an operator's result must not be its input
    return values, epilogue.clone(memory_format=torch.contiguous_format)


@_implements("cast")
def _cast_impl(x: Tensor, element: str, ties: int, overflow: int) -> Tensor:
    return minifloat.cast(x, element_of(element), Ties(ties), Overflow(overflow))


@_implements("hadamard")
def _hadamard_impl(x: Tensor, transform: str, dim: int) -> Tensor:
    return hadamard_dispatch.hadamard(x, transform_of(transform), dim)


@_implements("random_bits")
def _random_bits_impl(
    state: Tensor,
    rows: int,
    columns: int,
    stream: int,
    bits: int,
    row_ids: Tensor | None = None,
    column_offset: int = 0,
) -> Tensor:
    return philox.random_bits(
        rows,
        columns,
        state,
        stream=stream,
        bits=bits,
        row_ids=row_ids,
        column_offset=column_offset,
    )


@_multiplies("matmul")
def _matmul_impl(a: Tensor, b: Tensor, alpha: Tensor | None, dtype: torch.dtype) -> Tensor:
    return matmul_dispatch.scaled_matmul(a, b, alpha, dtype)


@_multiplies("grouped_matmul")
def _grouped_matmul_impl(
    a: Tensor, b: Tensor, alpha: Tensor | None, row_counts: Tensor, dtype: torch.dtype
) -> Tensor:
    return matmul_dispatch.grouped_matmul(a, b, alpha, row_counts, dtype)


@_multiplies("packed_matmul", decodes=True)
def _packed_matmul_impl(
    x: Tensor, codes: Tensor, scales: Tensor, tensor_scale: Tensor, format: str, int8: bool
) -> Tensor:
    return packed.packed_matmul(x, checked(codes, scales, tensor_scale, format, x.shape[1]), int8)


@_multiplies("stored_matmul", decodes=True)
def _stored_matmul_impl(
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
    sides = (
        checked(a, a_scales, a_tensor_scale, a_format, K),
        checked(b, b_scales, b_tensor_scale, b_format, K),
    )
    return matmul_dispatch.stored_matmul(*sides, K, dtype)


quantize = torch.ops.fp4lab.quantize.default
fake_quantize = torch.ops.fp4lab.fake_quantize.default
operand = torch.ops.fp4lab.operand.default
operand_pair = torch.ops.fp4lab.operand_pair.default
amax = torch.ops.fp4lab.amax.default
dequantize = torch.ops.fp4lab.dequantize.default
stored_operand = torch.ops.fp4lab.stored_operand.default
cast = torch.ops.fp4lab.cast.default
hadamard = torch.ops.fp4lab.hadamard.default
random_bits = torch.ops.fp4lab.random_bits.default
matmul = torch.ops.fp4lab.matmul.default
grouped_matmul = torch.ops.fp4lab.grouped_matmul.default
packed_matmul = torch.ops.fp4lab.packed_matmul.default
stored_matmul = torch.ops.fp4lab.stored_matmul.default
