# mypy: disable-error-code="untyped-decorator"
"""The operators, registered once with `torch.library`, and the choice of what computes them.

Schemas are flat (tensors and integers), so a model that uses them compiles with `fullgraph=True`,
and to a compiler each is one opaque call: no pass can drop the rounding inside. A faster
implementation is chosen in an operator's `dispatch.py` and must equal the reference bit for bit.

All take the matrix `x` as it is stored, `[M, K]` row-major in meaning (any strides), and the same
description of how it is quantized:

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

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from fp4lab.formats import BlockFormat, ElementType, Overflow, Ties
from fp4lab.kernels.backends import with_denormals
from fp4lab.kernels.hadamard import dispatch as hadamard_dispatch
from fp4lab.kernels.matmul import dispatch as matmul_dispatch
from fp4lab.kernels.matmul import packed
from fp4lab.kernels.minifloat import dispatch as minifloat
from fp4lab.kernels.philox import dispatch as philox
from fp4lab.kernels.quantize import dispatch, stored
from fp4lab.kernels.quantize import reference as _quantize

Function = TypeVar("Function", bound=Callable[..., Any])

_QUANTIZER = (
    "Tensor x, int[] format, bool transposed, int hadamard, int[] signs, int noise_bits, "
    "Tensor? state, int stream, Tensor? row_ids, int column_offset, Tensor? amax"
)

_library = torch.library.Library("fp4lab", "DEF")
_library.define(f"quantize({_QUANTIZER}) -> (Tensor, Tensor, Tensor)")
_library.define(f"fake_quantize({_QUANTIZER}) -> Tensor")
_library.define(f"operand({_QUANTIZER}, ScalarType dtype, bool turned) -> (Tensor, Tensor)")
_library.define(
    "operand_pair(Tensor x, int[] format, int hadamard, int[] signs, int noise_bits, int stream, "
    "int[] format_t, int hadamard_t, int[] signs_t, int noise_bits_t, int stream_t, "
    "Tensor? state, Tensor? row_ids, int column_offset, Tensor? amax, Tensor? amax_t, "
    "ScalarType dtype, bool turned) -> (Tensor, Tensor, Tensor, Tensor)"
)
_STORED = "Tensor codes, Tensor scales, Tensor amax, int[] format, int K, ScalarType dtype"
_library.define(f"dequantize({_STORED}) -> Tensor")
_library.define(f"stored_operand({_STORED}) -> (Tensor, Tensor)")
_library.define(
    "amax(Tensor x, int[] format, bool transposed, int hadamard, int[] signs) -> Tensor"
)
_library.define("cast(Tensor x, int[] element, int ties, int overflow) -> Tensor")
_library.define("hadamard(Tensor x, int size, int[] signs, int dim) -> Tensor")
_library.define(
    "random_bits(Tensor state, int rows, int columns, int stream, int bits, Tensor? row_ids, "
    "int column_offset) -> Tensor"
)
_library.define("matmul(Tensor a, Tensor b, Tensor? alpha, ScalarType dtype) -> Tensor")
_library.define(
    "grouped_matmul(Tensor a, Tensor b, Tensor? alpha, Tensor row_counts, ScalarType dtype)"
    " -> Tensor"
)
_library.define(
    "packed_matmul(Tensor x, Tensor codes, Tensor scales, Tensor amax, int[] format, bool int8)"
    " -> Tensor"
)
_library.define(
    "stored_matmul(Tensor a, Tensor a_scales, Tensor a_amax, int[] a_format, Tensor b, "
    "Tensor b_scales, Tensor b_amax, int[] b_format, int K, ScalarType dtype) -> Tensor"
)


@lru_cache(maxsize=256)
def _parse(ints: tuple[int, ...]) -> BlockFormat:
    return BlockFormat.from_ints(list(ints))


@lru_cache(maxsize=256)
def _parse_element(ints: tuple[int, ...]) -> ElementType:
    return ElementType.from_ints(list(ints))


def _asked(
    x: Tensor,
    format: list[int],
    transposed: bool,
    hadamard: int,
    signs: list[int],
    noise_bits: int,
    state: Tensor | None,
    stream: int,
    row_ids: Tensor | None,
    column_offset: int,
    amax: Tensor | None,
) -> _quantize.Quantization:
    noise = None
    if noise_bits:
        assert state is not None
        noise = _quantize.Noise(state, stream, noise_bits, row_ids, column_offset)
    fmt = _parse(tuple(format))
    if amax is not None:
        # a magnitude: -0 is 0
        amax = amax + 0.0
    return _quantize.Quantization(x, fmt, transposed, hadamard, tuple(signs), noise, amax)


def _dense(values: Tensor, transposed: bool) -> Tensor:
    """Row-major, or column-major for a transposed operand; a copy only where it is needed."""
    return values.t().contiguous().t() if transposed else values.contiguous()


def _implements(name: str) -> Callable[[Function], Function]:
    """Registers an operator; numbers below the smallest normal one are not flushed inside."""

    def register(function: Function) -> Function:
        _library.impl(name, with_denormals(function), "CompositeExplicitAutograd")
        return function

    return register


@_implements("quantize")
def _quantize_impl(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    codes, scales, amax = dispatch.codes_and_scales(_asked(x, *arguments))
    return codes.contiguous(), scales.contiguous(), amax


@_implements("fake_quantize")
def _fake_quantize_impl(x: Tensor, *arguments: Any) -> Tensor:
    asked = _asked(x, *arguments)
    return _dense(dispatch.dequantized(asked, x.dtype), asked.transposed)


@_implements("operand")
def _operand_impl(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *how, dtype, turned = arguments
    ((values, epilogue),) = dispatch.operands([_asked(x, *how)], dtype, turned)
    return values, epilogue.clone(memory_format=torch.contiguous_format)


@_implements("operand_pair")
def _operand_pair_impl(
    x: Tensor,
    format: list[int],
    hadamard: int,
    signs: list[int],
    noise_bits: int,
    stream: int,
    format_t: list[int],
    hadamard_t: int,
    signs_t: list[int],
    noise_bits_t: int,
    stream_t: int,
    state: Tensor | None,
    row_ids: Tensor | None,
    column_offset: int,
    amax: Tensor | None,
    amax_t: Tensor | None,
    dtype: torch.dtype,
    turned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    where = (row_ids, column_offset)
    rows = (format, False, hadamard, signs, noise_bits, state, stream, *where, amax)
    columns = (format_t, True, hadamard_t, signs_t, noise_bits_t, state, stream_t, *where, amax_t)
    asked = [_asked(x, *how) for how in (rows, columns)]
    (values, epilogue), (values_t, epilogue_t) = dispatch.operands(asked, dtype, turned)
    epilogues = [e.clone(memory_format=torch.contiguous_format) for e in (epilogue, epilogue_t)]
    return values, epilogues[0], values_t, epilogues[1]


@_implements("amax")
def _amax_impl(
    x: Tensor, format: list[int], transposed: bool, hadamard: int, signs: list[int]
) -> Tensor:
    return dispatch.amax(_asked(x, format, transposed, hadamard, signs, 0, None, 0, None, 0, None))


@_implements("dequantize")
def _dequantize_impl(
    codes: Tensor, scales: Tensor, amax: Tensor, format: list[int], K: int, dtype: torch.dtype
) -> Tensor:
    return stored.dequantized(codes, scales, amax, _parse(tuple(format)), K, dtype)


@_implements("stored_operand")
def _stored_operand_impl(
    codes: Tensor, scales: Tensor, amax: Tensor, format: list[int], K: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    values, epilogue = stored.operand(codes, scales, amax, _parse(tuple(format)), K, dtype)
    return values, epilogue.clone(memory_format=torch.contiguous_format)


@_implements("cast")
def _cast_impl(x: Tensor, element: list[int], ties: int, overflow: int) -> Tensor:
    return minifloat.cast(x, _parse_element(tuple(element)), Ties(ties), Overflow(overflow))


@_implements("hadamard")
def _hadamard_impl(x: Tensor, size: int, signs: list[int], dim: int) -> Tensor:
    return hadamard_dispatch.hadamard(x, size, tuple(signs), dim)


@_implements("random_bits")
def _random_bits_impl(
    state: Tensor,
    rows: int,
    columns: int,
    stream: int,
    bits: int,
    row_ids: Tensor | None,
    column_offset: int,
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


@torch.library.impl(_library, "matmul", "CompositeExplicitAutograd")
def _matmul_impl(a: Tensor, b: Tensor, alpha: Tensor | None, dtype: torch.dtype) -> Tensor:
    if torch.is_autocast_enabled(a.device.type):
        with torch.autocast(a.device.type, enabled=False):
            return matmul_dispatch.scaled_matmul(a, b, alpha, dtype)
    return matmul_dispatch.scaled_matmul(a, b, alpha, dtype)


@torch.library.impl(_library, "grouped_matmul", "CompositeExplicitAutograd")
def _grouped_matmul_impl(
    a: Tensor, b: Tensor, alpha: Tensor | None, row_counts: Tensor, dtype: torch.dtype
) -> Tensor:
    with torch.autocast(a.device.type, enabled=False):
        return matmul_dispatch.grouped_matmul(a, b, alpha, row_counts, dtype)


@_implements("packed_matmul")
def _packed_matmul_impl(
    x: Tensor, codes: Tensor, scales: Tensor, amax: Tensor, format: list[int], int8: bool
) -> Tensor:
    return packed.packed_matmul(x, codes, scales, amax, _parse(tuple(format)), int8)


@_implements("stored_matmul")
def _stored_matmul_impl(
    a: Tensor,
    a_scales: Tensor,
    a_amax: Tensor,
    a_format: list[int],
    b: Tensor,
    b_scales: Tensor,
    b_amax: Tensor,
    b_format: list[int],
    K: int,
    dtype: torch.dtype,
) -> Tensor:
    sides = (
        matmul_dispatch.Stored(a, a_scales, a_amax, _parse(tuple(a_format))),
        matmul_dispatch.Stored(b, b_scales, b_amax, _parse(tuple(b_format))),
    )
    with torch.autocast(a.device.type, enabled=False):
        return matmul_dispatch.stored_matmul(*sides, K, dtype)


def _shape(x: Tensor, transposed: bool) -> tuple[int, int]:
    return (x.shape[1], x.shape[0]) if transposed else (x.shape[0], x.shape[1])


@torch.library.register_fake("fp4lab::quantize", lib=_library)
def _quantize_fake(
    x: Tensor, format: list[int], transposed: bool, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    fmt = _parse(tuple(format))
    rows, columns = _shape(x, transposed)
    width = (columns + 1) // 2 if fmt.packed else columns
    codes = x.new_empty((rows, width), dtype=_quantize.code_dtype(fmt.element))
    if fmt.scale is None:
        scales = x.new_empty((0, 0), dtype=torch.float32)
    else:
        grid = _quantize.scale_grid(fmt, rows, columns)
        scales = x.new_empty(grid, dtype=_quantize.code_dtype(fmt.scale))
    return codes, scales, x.new_empty(_quantize.amax_shape(fmt, rows), dtype=torch.float32)


@torch.library.register_fake("fp4lab::fake_quantize", lib=_library)
def _fake_quantize_fake(x: Tensor, format: list[int], transposed: bool, *_: object) -> Tensor:
    return _dense(x.new_empty(_shape(x, transposed)), transposed)


def _operand_like(
    x: Tensor, format: list[int], transposed: bool, dtype: torch.dtype, turned: bool
) -> tuple[Tensor, Tensor]:
    fmt = _parse(tuple(format))
    rows, columns = _shape(x, transposed)
    values = _dense(x.new_empty((rows, columns), dtype=dtype), transposed and not turned)
    return values, x.new_empty(_quantize.epilogue_shape(fmt, rows), dtype=torch.float32)


@torch.library.register_fake("fp4lab::operand", lib=_library)
def _operand_fake(
    x: Tensor, format: list[int], transposed: bool, *rest: Any
) -> tuple[Tensor, Tensor]:
    return _operand_like(x, format, transposed, *rest[-2:])


@torch.library.register_fake("fp4lab::operand_pair", lib=_library)
def _operand_pair_fake(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = _operand_like(x, arguments[0], False, *arguments[-2:])
    return *rows, *_operand_like(x, arguments[5], True, *arguments[-2:])


@torch.library.register_fake("fp4lab::amax", lib=_library)
def _amax_fake(x: Tensor, format: list[int], transposed: bool, *_: object) -> Tensor:
    shape = _quantize.amax_shape(_parse(tuple(format)), _shape(x, transposed)[0])
    return x.new_empty(shape, dtype=torch.float32)


@torch.library.register_fake("fp4lab::dequantize", lib=_library)
def _dequantize_fake(
    codes: Tensor, scales: Tensor, amax: Tensor, format: list[int], K: int, dtype: torch.dtype
) -> Tensor:
    return codes.new_empty((codes.shape[0], K), dtype=dtype)


@torch.library.register_fake("fp4lab::stored_operand", lib=_library)
def _stored_operand_fake(
    codes: Tensor, scales: Tensor, amax: Tensor, format: list[int], K: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    values = codes.new_empty((codes.shape[0], K), dtype=dtype)
    shape = _quantize.epilogue_shape(_parse(tuple(format)), codes.shape[0])
    return values, codes.new_empty(shape, dtype=torch.float32)


@torch.library.register_fake("fp4lab::cast", lib=_library)
def _cast_fake(x: Tensor, element: list[int], ties: int, overflow: int) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.float32)


@torch.library.register_fake("fp4lab::hadamard", lib=_library)
def _hadamard_fake(x: Tensor, size: int, signs: list[int], dim: int) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("fp4lab::random_bits", lib=_library)
def _random_bits_fake(state: Tensor, rows: int, columns: int, *rest: Any) -> Tensor:
    return state.new_empty((rows, columns), dtype=torch.uint8 if rest[1] == 8 else torch.int64)


@torch.library.register_fake("fp4lab::matmul", lib=_library)
def _matmul_fake(a: Tensor, b: Tensor, alpha: Tensor | None, dtype: torch.dtype) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype)


@torch.library.register_fake("fp4lab::grouped_matmul", lib=_library)
def _grouped_matmul_fake(
    a: Tensor, b: Tensor, alpha: Tensor | None, row_counts: Tensor, dtype: torch.dtype
) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype)


@torch.library.register_fake("fp4lab::packed_matmul", lib=_library)
def _packed_matmul_fake(x: Tensor, codes: Tensor, *_: object) -> Tensor:
    return x.new_empty((x.shape[0], codes.shape[0]), dtype=torch.float32)


@torch.library.register_fake("fp4lab::stored_matmul", lib=_library)
def _stored_matmul_fake(
    a: Tensor,
    a_scales: Tensor,
    a_amax: Tensor,
    a_format: list[int],
    b: Tensor,
    *rest: Any,
) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=rest[-1])


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
