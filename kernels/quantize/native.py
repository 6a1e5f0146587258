"""The C version of block quantization (`cpu.c`): which cases it takes, and the call.

Letters as in `reference.py`. One call serves one quantization, or two of the same matrix from the
same reads of it. What a format and its options mean to C does not change from call to call and is
kept; a call only fills in addresses and noise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from math import lcm, prod
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fp4lab.formats import BlockFormat, Hadamard, Level
from fp4lab.kernels import backends
from fp4lab.kernels.hadamard.reference import LARGEST_KEPT
from fp4lab.kernels.native.memory import new_operand, new_result
from fp4lab.kernels.native.structures import (
    CHadamard,
    Element,
    Noise,
    element,
    hadamard,
    plain,
    threads,
)
from fp4lab.kernels.native.structures import noise as c_noise
from fp4lab.kernels.quantize.reference import (
    Quantization,
    Result,
    amax_shape,
    code_dtype,
    codes_shape,
    scale_grid,
)
from fp4lab.kernels.schema import DTYPES, is_compiled

#: shape and dtype of a result
_Tensor: TypeAlias = tuple[tuple[int, ...], torch.dtype]
#: in place of what nobody asked for
_NOTHING = torch.empty(0, device="cpu")
#: numbers that blocks and transforms may keep together, which C works on at a time
LARGEST_UNIT = 1 << 18
#: what a plain cast is to C: a block without a scale
UNSCALED, UNSCALED_BLOCK = 4, (1, 128)


class Want(NamedTuple):
    """What C is to write, in the operand's sense.

    Values of a transposed operand are laid out as the matrix is stored, or `turned` to row-major.
    """

    result: Result = Result.DEQUANTIZED
    #: of values
    dtype: torch.dtype = torch.float32
    #: block scales beside values, as float32
    scales: bool = False
    turned: bool = False
    #: whether the amax of a whole tensor is told
    amax: bool = True


class Made(NamedTuple):
    """Values or codes `[M, K]` (packed where the format is), block scales `[R, C]`, amax.

    Data that is nothing, and an amax that is not told, are empty.
    """

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
        ("hadamard", CHadamard),
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
    size = asked.hadamard_size
    return (
        plain(asked.x_MK)
        and is_compiled(asked.format)
        and asked.x_MK.numel() > 0
        and size <= LARGEST_KEPT
        and asked.shape[1] % size == 0
        and prod(_unit(asked.format, asked.transposed, size)) <= LARGEST_UNIT
    )


@lru_cache(maxsize=256)
def _unit(fmt: BlockFormat, transposed: bool, size: int) -> tuple[int, int]:
    """Rows and columns of the stored matrix that blocks and the transform keep together."""
    rows, columns = fmt.block or UNSCALED_BLOCK
    unit = (max(rows, 1), lcm(max(columns, 1), size))
    return unit[::-1] if transposed else unit


class _Call(NamedTuple):
    """One quantization of matrices of one shape: what does not change from call to call."""

    #: without addresses and noise
    plan: bytes
    #: lives as long as the plan has its address
    transform: CHadamard
    #: shapes and dtypes of results, contiguous; None: not made
    data: _Tensor | None
    scales: _Tensor | None
    amax: _Tensor | None
    #: the fields of the plan for the addresses of `data` and `scales`
    data_field: str
    scales_field: str
    #: `data` is that of the stored matrix, whose transpose the operand is
    as_stored: bool


@lru_cache(maxsize=256)
def _call(
    fmt: BlockFormat,
    transposed: bool,
    transform: Hadamard | None,
    want: Want,
    shape: tuple[int, int],
    has_amax: bool,
) -> _Call:
    rows, columns = fmt.block or UNSCALED_BLOCK
    scale = fmt.scale if fmt.scale is not None else fmt.element
    codes = want.result == Result.CODES
    as_codes = codes and fmt.scale is not None and fmt.scale.bits <= 8
    c_transform = hadamard(transform)
    plan = _Plan(
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
        hadamard=c_transform,
        result=min(want.result, Result.DEQUANTIZED),
        dtype=DTYPES[want.dtype],
        has_amax=has_amax,
        turned=transposed and (want.turned or codes),
        packed=codes and fmt.packed,
    )
    scales = None
    if fmt.block is not None and (codes or want.scales):
        grid = scale_grid(fmt, *shape)
        scales = (grid, torch.uint8 if as_codes else torch.float32)
        plan.scale_strides[:] = (1, grid[1]) if transposed else (grid[1], 1)
    as_stored = transposed and not plan.turned
    if codes:
        data = (codes_shape(fmt, *shape), code_dtype(fmt.element))
    else:
        data = (shape[::-1] if as_stored else shape, want.dtype)
    told = want.amax or fmt.level == Level.ROW
    return _Call(
        plan=bytes(plan),
        transform=c_transform,
        data=None if want.result == Result.NOTHING else data,
        scales=scales,
        amax=(amax_shape(fmt, shape[0]), torch.float32) if told and not has_amax else None,
        data_field="codes" if codes else "values",
        scales_field="scale_codes" if as_codes else "decode",
        as_stored=as_stored,
    )


def quantize(asked: Quantization, want: Want) -> Made:
    """Quantize a matrix; a case that C `takes`."""
    plan, made = _plan(asked, want)
    _run(plan, 1, asked.x_MK)
    return made


def quantize_both(asked: Sequence[Quantization], wanted: Sequence[Want]) -> list[Made]:
    """Quantize one matrix in two ways that C `takes`, from the same reads of it."""
    units = [_unit(one.format, one.transposed, one.hadamard_size) for one in asked]
    if prod(map(lcm, *units)) > LARGEST_UNIT:
        return [quantize(one, want) for one, want in zip(asked, wanted, strict=True)]
    both = [_plan(one, want) for one, want in zip(asked, wanted, strict=True)]
    plans = (_Plan * 2)(*(plan for plan, _ in both))
    _run(plans, 2, asked[0].x_MK)
    return [made for _, made in both]


def _run(plans: Any, count: int, x: Tensor) -> None:
    if x.dtype not in DTYPES:
        x = x.to(torch.float32)
    x = x.resolve_neg()
    rows, columns = x.shape
    if x.stride(1) != 1 and columns > 1:
        x = x.contiguous()
    matrix = _Matrix(
        x.data_ptr(), rows, columns, x.stride(0), DTYPES[x.dtype], threads(rows * columns)
    )
    if backends.native("quantize")(ctypes.byref(plans), count, ctypes.byref(matrix)):
        raise MemoryError(f"no memory to quantize a matrix of shape {(rows, columns)}")


def _plan(asked: Quantization, want: Want) -> tuple[_Plan, Made]:
    """A plan with the addresses of its results, and these."""
    x, fmt, transposed, transform, noise, amax = asked
    rows, columns = x.shape
    shape = (columns, rows) if transposed else (rows, columns)
    call = _call(fmt, transposed, transform, want, shape, amax is not None)
    plan = _Plan.from_buffer_copy(call.plan)
    scales = None
    if amax is not None:
        # a copy, made by the operator: C makes its NaN the one NaN
        amax = amax.contiguous()
        plan.amax = amax.data_ptr()
    elif call.amax is not None:
        amax = new_result(*call.amax)
        plan.amax = amax.data_ptr()
    else:
        amax = _NOTHING
    if call.scales is not None:
        scales = new_result(*call.scales)
        setattr(plan, call.scales_field, scales.data_ptr())
    if noise is not None:
        plan.noise = c_noise(noise.state, noise.stream, noise.bits, noise.column_offset)
        if noise.row_ids is not None:
            row_ids = noise.row_ids.to(torch.int64).contiguous()
            # which lives as long as the plan
            plan.held, plan.row_ids = row_ids, row_ids.data_ptr()
    if call.data is None:
        return plan, Made(_NOTHING, scales, amax)
    new_data = new_operand if want.result == Result.OPERAND else new_result
    data = new_data(*call.data)
    setattr(plan, call.data_field, data.data_ptr())
    return plan, Made(data.t() if call.as_stored else data, scales, amax)
