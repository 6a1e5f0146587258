"""Stored codes and scales back to numbers, and who computes it."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fp4lab.formats import BlockFormat, ElementType, Level
from fp4lab.kernels import backends
from fp4lab.kernels.minifloat.reference import decode
from fp4lab.kernels.native import structures as c
from fp4lab.kernels.quantize import reference
from fp4lab.kernels.quantize.scales import positive_nan_, rounded_to


class CStored(ctypes.Structure):
    """`stored_t` of stored.h."""

    _fields_ = (
        *((n, ctypes.c_int64) for n in ("rows", "columns", "block_rows", "block_columns")),
        ("element", c.Element),
        *((n, ctypes.c_int32) for n in ("packed", "per_row", "dtype", "threads")),
        ("inverse", ctypes.c_float),
        *((n, ctypes.c_void_p) for n in ("codes", "scales", "scale_values", "amax", "y")),
    )


def dequantized(
    codes: Tensor,
    scales: Tensor,
    amax: Tensor,
    fmt: BlockFormat,
    num_columns: int,
    dtype: torch.dtype,
) -> Tensor:
    """Element x ((block scale x amax) x fl(1/(C M))), in float32 and then rounded to `dtype`."""
    if by_c(codes, scales, amax, fmt):
        outer = amax if fmt.level != Level.NONE else None
        return _by_native(codes, scales, outer, fmt, num_columns, dtype)
    if _by_triton(codes, scales, amax):
        from fp4lab.kernels.quantize import triton_stored

        return triton_stored.dequantize(codes, scales, amax, fmt, num_columns, dtype)
    encoded = reference.from_storage(codes, scales, amax, fmt, num_columns)
    values = reference.dequantized(encoded, fmt, (codes.shape[0], num_columns))
    return rounded_to(values, dtype).contiguous()


def operand(
    codes: Tensor,
    scales: Tensor,
    amax: Tensor,
    fmt: BlockFormat,
    num_columns: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Element x block scale, in float32 or in bf16 that holds it, and the epilogue."""
    shape = (codes.shape[0], num_columns)
    if by_c(codes, scales, amax, fmt) and not fmt.whole_rows:
        values = _by_native(codes, scales, None, fmt, num_columns, dtype)
        return values, reference.epilogue(scales, amax, fmt, shape[0])
    if _by_triton(codes, scales, amax):
        from fp4lab.kernels.quantize import triton_stored

        return triton_stored.stored_operand(codes, scales, amax, fmt, num_columns, dtype)
    encoded = reference.from_storage(codes, scales, amax, fmt, num_columns)
    values, epilogue = reference.operand(encoded, fmt, shape)
    return rounded_to(values, dtype).contiguous(), epilogue


def _by_triton(codes: Tensor, scales: Tensor, amax: Tensor) -> bool:
    if backends.chosen(codes.device) != "triton":
        return False
    from fp4lab.kernels.quantize import triton_stored

    return triton_stored.takes(codes, scales, amax)


def by_c(codes: Tensor, scales: Tensor, amax: Tensor, fmt: BlockFormat) -> bool:
    """Whether C reads these parts."""
    return (
        backends.chosen(codes.device) == "native"
        and all(c.plain(part) for part in (codes, scales, amax))
        and codes.numel() > 0
        and codes.dtype == torch.uint8
        and fmt.scale is not None
    )


@lru_cache(maxsize=64)
def _table(scale: ElementType) -> Tensor:
    """The number of every code of a scale type; codes that are too wide for it wrap."""
    values = scale.values()
    numbers = [values[code % len(values)] for code in range(256)]
    table = torch.tensor(numbers, dtype=torch.float32, device="cpu")
    return positive_nan_(table)


def asked_of_c(
    codes: Tensor,
    scales: Tensor,
    amax: Tensor | None,
    fmt: BlockFormat,
    num_columns: int,
    dtype: torch.dtype,
) -> tuple[Any, list[Tensor | None]]:
    """What C reads, without a result, and the tensors that must live as long as the call."""
    assert fmt.block is not None
    assert fmt.scale is not None
    if scales.dtype == torch.int16:
        scales = decode(scales, fmt.scale)
    table = _table(fmt.scale) if scales.dtype == torch.uint8 else None
    codes, scales = codes.contiguous(), scales.contiguous()
    amax = amax.contiguous() if amax is not None else None
    asked = CStored(
        rows=codes.shape[0],
        columns=num_columns,
        block_rows=fmt.block[0],
        block_columns=fmt.block[1],
        element=c.element(fmt.element),
        packed=fmt.packed,
        per_row=fmt.level == Level.ROW,
        dtype=c.DTYPES[dtype],
        threads=c.threads(codes.shape[0] * num_columns),
        inverse=1.0 / fmt.amax_factor,
        codes=codes.data_ptr(),
        scales=scales.data_ptr(),
        scale_values=c.address(table),
        amax=c.address(amax),
    )
    return asked, [codes, scales, table, amax]


def _by_native(
    codes: Tensor,
    scales: Tensor,
    amax: Tensor | None,
    fmt: BlockFormat,
    num_columns: int,
    dtype: torch.dtype,
) -> Tensor:
    in_c = dtype if dtype in c.DTYPES else torch.float32
    asked, kept = asked_of_c(codes, scales, amax, fmt, num_columns, in_c)
    y = c.new_result((codes.shape[0], num_columns), in_c)
    asked.y = y.data_ptr()
    failed = backends.native("dequantize")(ctypes.byref(asked))
    del kept
    if failed:
        raise MemoryError(f"no memory to dequantize a matrix of shape {tuple(y.shape)}")
    return y.to(dtype)
