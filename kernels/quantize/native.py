"""The C version of block quantization (`cpu.c`): which cases it takes, and the call.

Letters as in `reference.py`. One call serves one quantization, or two of the same matrix from the
same reads of it. What a format and its options mean to C does not change from call to call and is
kept; a call only fills in addresses and noise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fp4lab.formats import BlockFormat
from fp4lab.kernels import backends
from fp4lab.kernels.hadamard.reference import LARGEST_KEPT
from fp4lab.kernels.native.structures import (
    DTYPES,
    Element,
    Hadamard,
    Noise,
    address,
    element,
    hadamard,
    new_result,
    plain,
    threads,
)
from fp4lab.kernels.native.structures import noise as c_noise
from fp4lab.kernels.quantize.reference import Quantization, amax_shape, code_dtype, scale_grid

#: what a plain cast is to C: a block without a scale
UNSCALED, UNSCALED_BLOCK = 4, (1, 128)


class Result(IntEnum):
    """What becomes of an element value."""

    ELEMENTS = 0
    #: times its block scale
    OPERAND = 1
    #: times all scales
    DEQUANTIZED = 2


class Want(NamedTuple):
    """What C is to write: codes with scales, or values of a dtype; both in the operand's sense.

    `scales` asks for the block scales as float32 beside values. Values of a transposed operand are
    laid out as the matrix is stored, or `turned` to row-major.
    """

    codes: bool = False
    result: Result = Result.DEQUANTIZED
    dtype: torch.dtype = torch.float32
    scales: bool = False
    turned: bool = False
    #: nothing but the second-level amax
    amax_only: bool = False


class Made(NamedTuple):
    """Values or codes `[M, K]` (packed where the format is), block scales `[R, C]`, amax."""

    data: Tensor
    scales: Tensor | None
    amax: Tensor


class _Plan(ctypes.Structure):
    """`plan_t` of plan.h."""

    _fields_ = (
        ("block_rows", ctypes.c_int64),
        ("block_columns", ctypes.c_int64),
        *((n, Element) for n in ("element", "scale", "precision")),
        *((n, ctypes.c_int32) for n in ("scale_rule", "block_scale", "level", "selection")),
        *((n, ctypes.c_int32) for n in ("transposed", "keep_negative_zero")),
        *((n, ctypes.c_float) for n in ("scale_floor", "zero_scale", "even_limit")),
        ("target", ctypes.c_double),
        ("amax_factor", ctypes.c_double),
        ("hadamard", Hadamard),
        ("noise", Noise),
        *((n, ctypes.c_int32) for n in ("has_amax", "result", "dtype", "turned", "packed")),
        *((n, ctypes.c_void_p) for n in ("row_ids", "amax", "decode", "scale_codes")),
        ("scale_strides", ctypes.c_int64 * 2),
        ("values", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
    )


class _Matrix(ctypes.Structure):
    """`matrix_t` of plan.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *((n, ctypes.c_int64) for n in ("rows", "columns", "stride")),
        ("dtype", ctypes.c_int32),
        ("threads", ctypes.c_int32),
    )


def takes(asked: Quantization) -> bool:
    """Whether C computes this case; it leaves what it cannot read, and errors, to the reference."""
    return (
        plain(asked.x_MK)
        and asked.x_MK.numel() > 0
        and asked.hadamard <= LARGEST_KEPT
        and asked.shape[1] % asked.hadamard == 0
    )


@lru_cache(maxsize=1024)
def _template(
    fmt: BlockFormat, transposed: bool, size: int, signs: tuple[int, ...], want: Want
) -> bytes:
    """A plan without addresses and noise."""
    rows, columns = fmt.block or UNSCALED_BLOCK
    scale = fmt.scale if fmt.scale is not None else fmt.element
    return bytes(
        _Plan(
            block_rows=columns if transposed else rows,
            block_columns=rows if transposed else columns,
            element=element(fmt.element, fmt.ties, fmt.overflow),
            scale=element(scale, fmt.scale_ties),
            precision=element(fmt.scale_precision),
            scale_rule=fmt.scale_rule,
            block_scale=UNSCALED if fmt.block is None else fmt.block_scale,
            level=fmt.level,
            selection=fmt.selection,
            transposed=transposed,
            keep_negative_zero=fmt.keep_negative_zero or fmt.block is None,
            scale_floor=fmt.scale_floor,
            zero_scale=fmt.zero_scale,
            even_limit=1.0 - 2.0 ** -(fmt.element.mantissa_bits + 2),
            target=fmt.target,
            amax_factor=fmt.amax_factor,
            hadamard=hadamard(size, signs),
            result=want.result,
            dtype=DTYPES[want.dtype],
            turned=transposed and (want.turned or want.codes),
            packed=want.codes and fmt.packed,
        )
    )


def quantize(asked: Sequence[Quantization], wanted: Sequence[Want]) -> list[Made]:
    """Quantize one matrix in one or two ways; all of them are cases that C `takes`."""
    x = asked[0].x_MK
    if x.dtype not in DTYPES:
        x = x.to(torch.float32)
    x = x.resolve_neg()
    if x.stride(1) != 1 and x.shape[1] > 1:
        x = x.contiguous()
    rows, columns = x.shape
    matrix = _Matrix(
        x.data_ptr(), rows, columns, x.stride(0), DTYPES[x.dtype], threads(rows * columns)
    )
    plans, made, kept = (_Plan * len(asked))(), [], []
    for plan, one, want in zip(plans, asked, wanted, strict=True):
        template = _template(one.format, one.transposed, one.hadamard, one.signs, want)
        ctypes.memmove(ctypes.addressof(plan), template, len(template))
        made.append(_outputs(plan, one, want))
        kept.append(_noise(plan, one))
    failed = backends.native("quantize")(plans, len(plans), ctypes.byref(matrix))
    del kept
    if failed:
        raise MemoryError(f"no memory to quantize a matrix of shape {(rows, columns)}")
    return made


def _outputs(plan: Any, asked: Quantization, want: Want) -> Made:
    """Makes the results' memory and writes its addresses into the plan."""
    fmt, (rows, columns) = asked.format, asked.shape
    if asked.amax is None:
        amax = new_result(amax_shape(fmt, rows), torch.float32)
    else:
        amax = asked.amax.to(torch.float32, copy=True).contiguous()
        plan.has_amax = 1
    plan.amax = amax.data_ptr()
    scales = None
    if fmt.block is not None and (want.codes or want.scales):
        grid = scale_grid(fmt, rows, columns)
        as_codes = want.codes and fmt.scale is not None and fmt.scale.bits <= 8
        scales = new_result(grid, torch.uint8 if as_codes else torch.float32)
        if as_codes:
            plan.scale_codes = scales.data_ptr()
        else:
            plan.decode = scales.data_ptr()
        along, across = (1, grid[1]) if asked.transposed else (grid[1], 1)
        plan.scale_strides[0], plan.scale_strides[1] = along, across
    if want.codes:
        width = (columns + 1) // 2 if fmt.packed else columns
        data = new_result((rows, width), code_dtype(fmt.element))
        plan.codes = data.data_ptr()
    elif want.amax_only:
        data = amax
    elif asked.transposed and not want.turned:
        data = new_result((columns, rows), want.dtype).t()
        plan.values = data.data_ptr()
    else:
        data = new_result((rows, columns), want.dtype)
        plan.values = data.data_ptr()
    return Made(data, scales, amax)


def _noise(plan: Any, asked: Quantization) -> Tensor | None:
    """Writes the noise into the plan; returns what must live as long as the call."""
    noise = asked.noise
    if noise is None:
        return None
    plan.noise = c_noise(noise.state, noise.stream, noise.bits, noise.column_offset)
    if noise.row_ids is None:
        return None
    row_ids = noise.row_ids.to(torch.int64).contiguous()
    assert row_ids.shape == (asked.x_MK.shape[0],)
    plan.row_ids = address(row_ids)
    return row_ids
