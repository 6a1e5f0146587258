"""The C version of block quantization (`cpu.c`): which cases it takes, and the call.

Letters as in `reference.py`. Values and block scales come back as the matrix is stored;
`dispatch.py` turns them for a transposed operand.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fp4lab.formats import ElementType, Level, Overflow, Selection, Ties
from fp4lab.kernels.hadamard.reference import LARGEST_KEPT, matrix
from fp4lab.kernels.native import library, wants_native
from fp4lab.kernels.quantize.reference import Quantization, block_sides
from fp4lab.kernels.quantize.scales import positive_nan_

SOURCE = Path(__file__).with_name("cpu.c")


class Result(IntEnum):
    """What becomes of an element value."""

    ELEMENTS = 0
    #: times its block scale
    OPERAND = 1
    #: times all scales
    DEQUANTIZED = 2


class Quantized(NamedTuple):
    """float32 values `[M, K]`, block scales `[A, B]` and amax, as the matrix is stored."""

    values: Tensor
    decode: Tensor
    amax: Tensor


class _Element(ctypes.Structure):
    _fields_ = (
        ("mantissa_bits", ctypes.c_int32),
        ("min_exponent", ctypes.c_int32),
        ("max_exponent", ctypes.c_int32),
        ("max_value", ctypes.c_float),
    )


class _Plan(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "columns", "block_rows", "block_columns")),
        ("element", _Element),
        ("scale", _Element),
        *(
            (name, ctypes.c_int32)
            for name in (
                *("scale_rule", "block_scale", "level", "transposed", "keep_negative_zero"),
                "result",
            )
        ),
        *((name, ctypes.c_float) for name in ("scale_floor", "zero_scale")),
        *((name, ctypes.c_int32) for name in ("hadamard", "has_signs", "noise_bits", "has_amax")),
        ("key", ctypes.c_uint32 * 2),
        ("step", ctypes.c_uint32),
        ("microbatch", ctypes.c_uint32),
        ("column_offset", ctypes.c_int64),
        ("target", ctypes.c_double),
        ("amax_factor", ctypes.c_double),
    )


def takes(asked: Quantization) -> bool:
    """Whether the C version computes this case (and is wanted); the reference computes the rest."""
    x, fmt = asked.x_MK, asked.format
    return (
        x.device.type == "cpu"
        and type(x) in (Tensor, torch.nn.Parameter)
        and fmt.block is not None
        and fmt.selection == Selection.NONE
        and fmt.ties == fmt.scale_ties == Ties.EVEN
        and fmt.scale_precision.mantissa_bits == 23
        and fmt.overflow == Overflow.SATURATE
        and not fmt.element.is_short_float32
        and not (fmt.rounds_scale and fmt.scale is not None and _is_bf16_like(fmt.scale))
        and x.numel() > 0
        # a narrower input's Hadamard transform is rounded to its own type first
        and (x.dtype == torch.float32 or not asked.is_transformed)
        and asked.shape[1] % asked.hadamard == 0
        and asked.hadamard <= LARGEST_KEPT
        and wants_native()
        and library(SOURCE) is not None
    )


def _is_bf16_like(scale: ElementType) -> bool:
    return scale.is_short_float32 and scale.mantissa_bits < 23


def quantize(asked: Quantization, result: Result) -> Quantized:
    """Quantize what `takes` has agreed to."""
    compiled, fmt = library(SOURCE), asked.format
    assert compiled is not None
    assert fmt.scale is not None
    x = asked.x_MK.to(torch.float32).resolve_neg().contiguous()
    rows, columns = x.shape
    sides = block_sides(fmt, *asked.shape)
    block_rows, block_columns = reversed(sides) if asked.transposed else sides
    grid = (-(-rows // block_rows), -(-columns // block_columns))
    count = {Level.NONE: 0, Level.TENSOR: 1, Level.ROW: asked.shape[0]}[fmt.level]
    given = asked.amax
    amax = x.new_empty(count) if given is None else given.to(torch.float32, copy=True).contiguous()
    assert amax.numel() == count
    values, decode = torch.empty_like(x), x.new_empty(grid)
    plan = _Plan(
        rows=rows,
        columns=columns,
        block_rows=block_rows,
        block_columns=block_columns,
        element=_element(fmt.element),
        scale=_element(fmt.scale),
        scale_rule=fmt.scale_rule,
        block_scale=fmt.block_scale,
        level=fmt.level,
        transposed=asked.transposed,
        keep_negative_zero=fmt.keep_negative_zero,
        result=result,
        scale_floor=fmt.scale_floor,
        zero_scale=fmt.zero_scale,
        hadamard=asked.hadamard,
        has_signs=bool(asked.signs),
        has_amax=given is not None,
        target=fmt.target,
        amax_factor=fmt.amax_factor,
    )
    row_ids, noise = None, asked.noise
    if noise is not None:
        low, high, step, microbatch = noise.words()
        plan.key[0], plan.key[1], plan.step, plan.microbatch = low, high, step, microbatch
        plan.noise_bits, plan.column_offset = noise.bits, noise.column_offset
        row_ids = None if noise.row_ids is None else noise.row_ids.to(torch.int64).contiguous()
        assert row_ids is None or row_ids.shape == (rows,)
    rotation = matrix(asked.hadamard, asked.signs) if asked.is_transformed else None
    failed = compiled.fp4lab_quantize(
        ctypes.byref(plan), *(_pointer(t) for t in (x, rotation, row_ids, amax, decode, values))
    )
    if failed:
        raise MemoryError(f"no memory to quantize a matrix of shape {tuple(x.shape)}")
    return Quantized(values, positive_nan_(decode), positive_nan_(amax))


def _element(e: ElementType) -> _Element:
    return _Element(e.mantissa_bits, e.min_exponent, e.max_exponent, e.max_value)


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())
