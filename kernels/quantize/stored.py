"""Stored codes and scales back to numbers, and who computes it."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat, ElementType, Level
from fp4lab.kernels import backends
from fp4lab.kernels.minifloat.reference import decode, positive_nan_, rounded_to
from fp4lab.kernels.native import structures as c
from fp4lab.kernels.native.memory import new_result
from fp4lab.kernels.quantize import reference
from fp4lab.kernels.schema import DTYPES, format_of, is_compiled


class CStored(ctypes.Structure):
    """`stored_t` of stored.h."""

    _fields_ = (
        *((n, ctypes.c_int64) for n in ("rows", "columns", "block_rows", "block_columns")),
        ("element", c.Element),
        *((n, ctypes.c_int32) for n in ("packed", "per_row", "dtype", "threads")),
        ("inverse", ctypes.c_float),
        *((n, ctypes.c_void_p) for n in ("codes", "scales", "scale_values", "amax", "y")),
    )


class Stored(NamedTuple):
    """Codes, block scales and tensor scale of a matrix, and their format."""

    codes: Tensor
    scales: Tensor
    tensor_scale: Tensor
    format: BlockFormat


def checked(
    codes: Tensor, scales: Tensor, tensor_scale: Tensor, format: str, num_columns: int
) -> Stored:
    """The parts with their format; InputError where they do not belong together."""
    fmt = format_of(format)
    parts = (codes, scales, tensor_scale)
    check_parts(parts, fmt, codes.shape[0] if codes.dim() else 0, num_columns)
    return Stored(*parts, fmt)


def check_parts(
    parts: tuple[Tensor, Tensor, Tensor], fmt: BlockFormat, num_rows: int, num_columns: int
) -> None:
    """InputError unless codes, scales and tensor scale are those of such a matrix."""
    codes_shape = reference.codes_shape(fmt, num_rows, num_columns)
    scales_shape = reference.scales_shape(fmt, num_rows, num_columns)
    needed: tuple[tuple[str, tuple[int, ...], torch.dtype], ...] = (
        ("codes", codes_shape, reference.code_dtype(fmt.element)),
        ("scales", scales_shape, reference.scales_dtype(fmt)),
        (fmt.direction.part, reference.amax_shape(fmt, num_rows), torch.float32),
    )
    device = parts[0].device
    for (name, shape, dtype), part in zip(needed, parts, strict=True):
        if part.shape != shape or part.dtype != dtype:
            raise InputError(
                f"{name} of shape {tuple(part.shape)} and dtype {part.dtype}: {num_rows} rows of "
                f"{num_columns} numbers in {fmt.name or 'this format'} need {shape} and {dtype}; "
                "give the parts that fp4lab.quantize made"
            )
        if part.device != device:
            raise InputError(f"{name} is on {part.device}, codes on {device}; move all to one")


def dequantized(q: Stored, num_columns: int, dtype: torch.dtype) -> Tensor:
    """Element x whole scale (`reference.dequantized`), in float32 and then rounded to `dtype`."""
    known = is_compiled(q.format)
    if known and c_takes(q):
        return _by_c(q, num_columns, dtype, outer=q.format.level != Level.NONE)
    if known and _triton_takes(q):
        from fp4lab.kernels.quantize import triton_stored

        return triton_stored.dequantize(q, num_columns, dtype)
    encoded = reference.from_storage(*q, num_columns)
    values = reference.dequantized(encoded, q.format, (q.codes.shape[0], num_columns))
    return rounded_to(values, dtype).contiguous()


def operand(q: Stored, num_columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Element x block scale, in float32 or in bf16 that holds it, and the epilogue."""
    fmt, shape = q.format, (q.codes.shape[0], num_columns)
    if c_takes(q) and not fmt.whole_rows:
        values = _by_c(q, num_columns, dtype, outer=False)
        return values, reference.epilogue(q.scales, q.tensor_scale, fmt, shape[0])
    if _triton_takes(q):
        from fp4lab.kernels.quantize import triton_stored

        return triton_stored.operand(q, num_columns, dtype)
    values, epilogue = reference.operand(reference.from_storage(*q, num_columns), fmt, shape)
    return rounded_to(values, dtype).contiguous(), epilogue


def _triton_takes(q: Stored) -> bool:
    if backends.chosen(q.codes.device) != "triton":
        return False
    from fp4lab.kernels.quantize import triton_stored

    return triton_stored.takes(q)


def c_takes(q: Stored) -> bool:
    """Whether C reads these parts."""
    return (
        backends.chosen(q.codes.device) == "native"
        and all(c.plain(part) for part in (q.codes, q.scales, q.tensor_scale))
        and q.codes.numel() > 0
        and q.codes.dtype == torch.uint8
        and q.format.scale is not None
    )


@lru_cache(maxsize=64)
def _table(scale: ElementType) -> Tensor:
    """The number of every code of a scale type; codes that are too wide for it wrap."""
    values = scale.values()
    numbers = [values[code % len(values)] for code in range(256)]
    table = torch.tensor(numbers, dtype=torch.float32, device="cpu")
    return positive_nan_(table)


def as_c(q: Stored, num_columns: int, dtype: torch.dtype, *, outer: bool) -> CStored:
    """What C reads, with or without the amax; a place for the result is missing."""
    fmt = q.format
    assert fmt.block is not None
    assert fmt.scale is not None
    scales = decode(q.scales, fmt.scale) if q.scales.dtype == torch.int16 else q.scales
    table = _table(fmt.scale) if scales.dtype == torch.uint8 else None
    codes, scales = q.codes.contiguous(), scales.contiguous()
    amax = q.tensor_scale.contiguous() if outer else None
    call = CStored(
        rows=codes.shape[0],
        columns=num_columns,
        block_rows=fmt.block[0],
        block_columns=fmt.block[1],
        element=c.element(fmt.element),
        packed=fmt.packed,
        per_row=fmt.level == Level.ROW,
        dtype=DTYPES[dtype],
        threads=c.threads(codes.shape[0] * num_columns),
        inverse=1.0 / fmt.amax_factor,
        codes=codes.data_ptr(),
        scales=scales.data_ptr(),
        scale_values=c.address(table),
        amax=c.address(amax),
    )
    # which live as long as the call
    call.held = codes, scales, table, amax
    return call


def _by_c(q: Stored, num_columns: int, dtype: torch.dtype, *, outer: bool) -> Tensor:
    in_c = dtype if dtype in DTYPES else torch.float32
    call = as_c(q, num_columns, in_c, outer=outer)
    y = new_result((q.codes.shape[0], num_columns), in_c)
    call.y = y.data_ptr()
    if backends.native("dequantize")(ctypes.byref(call)):
        raise MemoryError(f"no memory to dequantize a matrix of shape {tuple(y.shape)}")
    return y.to(dtype)
