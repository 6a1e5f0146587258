# mypy: disable-error-code="untyped-decorator"
"""The operators, registered once with `torch.library`, and the choice of what computes them.

Schemas are flat (tensors and integers), so a model that uses them compiles with `fullgraph=True`,
and to a compiler each is one opaque call: no pass can drop the rounding inside. A faster
implementation is chosen in `quantize/dispatch.py` and must equal the reference bit for bit.

All take the matrix `x` as it is stored, `[M, K]` row-major in meaning (any strides), and the same
description of how it is quantized:

    format          `BlockFormat.ints`
    transposed      quantize x^T (blocks and Hadamard run along M); results are `[K, M]`, values
                    with the strides of x^T, codes contiguous
    hadamard, signs size of the Hadamard transform (1: none) and its signs (empty: none)
    noise_bits      0 nearest, 8 or 32 stochastic, with `state` (int64 `[4]`), `stream`, global
                    `row_ids` (int64 `[M]`) and `column_offset` of the stored matrix
    amax            second-level amax to use instead of the operand's own
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fp4lab.formats import WHOLE, BlockFormat, ElementType, Level
from fp4lab.kernels.hadamard import reference as _hadamard
from fp4lab.kernels.matmul import reference as _matmul
from fp4lab.kernels.quantize import dispatch
from fp4lab.kernels.quantize import reference as _quantize
from fp4lab.kernels.quantize.scales import positive_nan_

_QUANTIZER = (
    "(Tensor x, int[] format, bool transposed, int hadamard, int[] signs, int noise_bits, "
    "Tensor? state, int stream, Tensor? row_ids, int column_offset, Tensor? amax)"
)

_library = torch.library.Library("fp4lab", "DEF")
_library.define(f"quantize{_QUANTIZER} -> (Tensor, Tensor, Tensor)")
_library.define(f"fake_quantize{_QUANTIZER} -> Tensor")
_library.define(f"operand{_QUANTIZER} -> (Tensor, Tensor)")
_library.define(
    "dequantize(Tensor codes, Tensor scales, Tensor amax, int[] format, int K) -> Tensor"
)
_library.define(
    "stored_operand(Tensor codes, Tensor scales, Tensor amax, int[] format, int K)"
    " -> (Tensor, Tensor)"
)
_library.define("hadamard(Tensor x, int size, int[] signs, int dim) -> Tensor")
_library.define("matmul(Tensor a, Tensor b, Tensor? alpha, bool fast) -> Tensor")


@lru_cache(maxsize=256)
def _parse(ints: tuple[int, ...]) -> BlockFormat:
    return BlockFormat.from_ints(list(ints))


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
    return _quantize.Quantization(x, fmt, transposed, hadamard, tuple(signs), noise, amax)


def _dense(values: Tensor, transposed: bool) -> Tensor:
    """Row-major, or column-major for a transposed operand; a copy only where it is needed."""
    return values.t().contiguous().t() if transposed else values.contiguous()


@torch.library.impl(_library, "quantize", "CompositeExplicitAutograd")
def _quantize_impl(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    asked = _asked(x, *arguments)
    codes, scales, amax = _quantize.codes_and_scales(
        dispatch.encoded(asked), asked.format, asked.shape
    )
    return codes.contiguous(), scales.clone(memory_format=torch.contiguous_format), amax.clone()


@torch.library.impl(_library, "fake_quantize", "CompositeExplicitAutograd")
def _fake_quantize_impl(x: Tensor, *arguments: Any) -> Tensor:
    values = dispatch.dequantized(_asked(x, *arguments)).to(x.dtype)
    # torch's casts to 16 bits give NaN other bits in vectors than in what is left of them
    return _dense(positive_nan_(values) if values.element_size() == 2 else values, arguments[1])


@torch.library.impl(_library, "operand", "CompositeExplicitAutograd")
def _operand_impl(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    values, epilogue = dispatch.operand(_asked(x, *arguments))
    epilogue = epilogue.clone(memory_format=torch.contiguous_format)
    return _dense(values, arguments[1]), epilogue


@torch.library.impl(_library, "dequantize", "CompositeExplicitAutograd")
def _dequantize_impl(
    codes: Tensor, scales: Tensor, amax: Tensor, format: list[int], K: int
) -> Tensor:
    fmt = _parse(tuple(format))
    encoded = _quantize.from_storage(codes, scales, amax, fmt, K)
    return _quantize.dequantized(encoded, fmt, (codes.shape[0], K)).contiguous()


@torch.library.impl(_library, "stored_operand", "CompositeExplicitAutograd")
def _stored_operand_impl(
    codes: Tensor, scales: Tensor, amax: Tensor, format: list[int], K: int
) -> tuple[Tensor, Tensor]:
    fmt = _parse(tuple(format))
    encoded = _quantize.from_storage(codes, scales, amax, fmt, K)
    values, epilogue = _quantize.operand(encoded, fmt, (codes.shape[0], K))
    return values.contiguous(), epilogue.clone(memory_format=torch.contiguous_format)


@torch.library.impl(_library, "hadamard", "CompositeExplicitAutograd")
def _hadamard_impl(x: Tensor, size: int, signs: list[int], dim: int) -> Tensor:
    return _hadamard.hadamard(x, size, signs, dim).clone(memory_format=torch.contiguous_format)


@torch.library.impl(_library, "matmul", "CompositeExplicitAutograd")
def _matmul_impl(a: Tensor, b: Tensor, alpha: Tensor | None, fast: bool) -> Tensor:
    if torch.is_autocast_enabled(a.device.type):
        with torch.autocast(a.device.type, enabled=False):
            return _matmul.scaled_matmul(a, b, alpha, fast)
    return _matmul.scaled_matmul(a, b, alpha, fast)


def _shape(x: Tensor, transposed: bool) -> tuple[int, int]:
    return (x.shape[1], x.shape[0]) if transposed else (x.shape[0], x.shape[1])


def _amax_shape(fmt: BlockFormat, rows: int) -> tuple[int, ...]:
    return {Level.NONE: (0,), Level.TENSOR: (1,), Level.ROW: (rows,)}[fmt.level]


def _epilogue_shape(fmt: BlockFormat, rows: int) -> tuple[int, ...]:
    if fmt.level == Level.ROW or (fmt.whole_rows and fmt.block == (1, WHOLE)):
        return (rows, 1)
    return (1,) if fmt.level == Level.TENSOR or fmt.whole_rows else (0,)


def _stored_dtype(element: ElementType) -> torch.dtype:
    if element.bits > 16:
        return torch.float32
    return torch.uint8 if element.bits <= 8 else torch.int16


@torch.library.register_fake("fp4lab::quantize", lib=_library)
def _quantize_fake(
    x: Tensor, format: list[int], transposed: bool, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    fmt = _parse(tuple(format))
    rows, columns = _shape(x, transposed)
    width = (columns + 1) // 2 if fmt.packed else columns
    codes = x.new_empty((rows, width), dtype=_stored_dtype(fmt.element))
    if fmt.scale is None:
        scales = x.new_empty((0, 0), dtype=torch.float32)
    else:
        sides = _quantize.block_sides(fmt, rows, columns)
        grid = (-(-rows // sides[0]), -(-columns // sides[1]))
        scales = x.new_empty(grid, dtype=_stored_dtype(fmt.scale))
    return codes, scales, x.new_empty(_amax_shape(fmt, rows), dtype=torch.float32)


@torch.library.register_fake("fp4lab::fake_quantize", lib=_library)
def _fake_quantize_fake(x: Tensor, format: list[int], transposed: bool, *_: object) -> Tensor:
    return _dense(x.new_empty(_shape(x, transposed)), transposed)


@torch.library.register_fake("fp4lab::operand", lib=_library)
def _operand_fake(
    x: Tensor, format: list[int], transposed: bool, *_: object
) -> tuple[Tensor, Tensor]:
    fmt = _parse(tuple(format))
    rows, columns = _shape(x, transposed)
    values = _dense(x.new_empty((rows, columns), dtype=torch.float32), transposed)
    return values, x.new_empty(_epilogue_shape(fmt, rows), dtype=torch.float32)


@torch.library.register_fake("fp4lab::dequantize", lib=_library)
def _dequantize_fake(
    codes: Tensor, scales: Tensor, amax: Tensor, format: list[int], K: int
) -> Tensor:
    return codes.new_empty((codes.shape[0], K), dtype=torch.float32)


@torch.library.register_fake("fp4lab::stored_operand", lib=_library)
def _stored_operand_fake(
    codes: Tensor, scales: Tensor, amax: Tensor, format: list[int], K: int
) -> tuple[Tensor, Tensor]:
    values = codes.new_empty((codes.shape[0], K), dtype=torch.float32)
    shape = _epilogue_shape(_parse(tuple(format)), codes.shape[0])
    return values, codes.new_empty(shape, dtype=torch.float32)


@torch.library.register_fake("fp4lab::hadamard", lib=_library)
def _hadamard_fake(x: Tensor, size: int, signs: list[int], dim: int) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("fp4lab::matmul", lib=_library)
def _matmul_fake(a: Tensor, b: Tensor, alpha: Tensor | None, fast: bool) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=_matmul.result_dtype(a, b))


quantize = torch.ops.fp4lab.quantize.default
fake_quantize = torch.ops.fp4lab.fake_quantize.default
operand = torch.ops.fp4lab.operand.default
dequantize = torch.ops.fp4lab.dequantize.default
stored_operand = torch.ops.fp4lab.stored_operand.default
hadamard = torch.ops.fp4lab.hadamard.default
matmul = torch.ops.fp4lab.matmul.default
