"""Block quantization by Triton kernels: the functions of `reference.py`, bit for bit.

They run on any CUDA GPU, and on the CPU in Triton's interpreter where that was chosen
(TRITON_INTERPRET=1 when Triton is imported). Left out, and left to the reference: float64, formats
whose blocks have sides that are no powers of two or above 128, and Hadamard sizes above 1024.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from fp4lab.formats import E2M1, WHOLE, BlockFormat, Level, Overflow, Selection, Ties
from fp4lab.kernels.capability import BLOCK_SCALED
from fp4lab.kernels.hadamard.triton import LARGEST, LARGEST_FUSED, transform_rows
from fp4lab.kernels.minifloat.reference import positive_nan_
from fp4lab.kernels.philox.triton import NoiseArguments, is_aligned, salts
from fp4lab.kernels.quantize import triton_columns
from fp4lab.kernels.quantize.reference import (
    Quantization,
    Result,
    amax_shape,
    code_dtype,
    codes_shape,
    scales_dtype,
    scales_shape,
)
from fp4lab.kernels.quantize.triton_kernels import amax_kernel, quantize_kernel
from fp4lab.kernels.schema import DTYPES, is_compiled
from fp4lab.kernels.triton.constants import How, Plan, sign_mask
from fp4lab.kernels.triton.launch import as_integers, launch, plain, readable


class Operand(NamedTuple):
    """A quantization as its kernels see it: the matrix in the operand's orientation."""

    asked: Quantization
    x_MK: Tensor
    how: How
    plan: Plan
    tile: tuple[int, int]
    #: second-level amax, and that of blocks which are rows or the tensor
    amax: Tensor
    block_amax: Tensor | None

    @property
    def programs(self) -> int:
        """Tiles of the matrix."""
        rows, columns = self.x_MK.shape
        return int(triton.cdiv(rows, self.tile[0]) * triton.cdiv(columns, self.tile[1]))


def takes(asked: Quantization) -> bool:
    """Whether kernels compute this case; the reference computes the rest."""
    x = asked.x_MK
    return (
        readable(x)
        and x.dtype in DTYPES
        and takes_format(asked.format)
        and asked.hadamard_size <= LARGEST
        and asked.shape[1] % asked.hadamard_size == 0
    )


def takes_format(fmt: BlockFormat) -> bool:
    """Whether kernels know its arithmetic and a tile holds whole blocks.

    Sides are powers of two to 128, or rows or the tensor.
    """
    if not is_compiled(fmt):
        return False
    if fmt.block is None:
        return True
    rows, columns = fmt.block
    if columns == 0:
        return rows in (0, 1)
    sides = all(0 < side <= 128 and side & (side - 1) == 0 for side in (rows, columns))
    return sides and (fmt.selection == Selection.NONE or 2 <= columns <= 32)


def tile_of(asked: Quantization) -> tuple[int, int]:
    """Rows and columns of a tile: whole blocks, whole Hadamard groups, long runs in memory."""
    rows, columns = asked.format.block or (1, 1)
    least = (64, 64) if asked.transposed else (32, 128)
    return max(least[0], rows), max(least[1], columns)


def warps(tile: tuple[int, int], per_thread: int = 32) -> int:
    """Warps of a program: that many elements of a tile for each thread."""
    return min(16, max(4, tile[0] * tile[1] // (32 * per_thread)))


def plain_matrix(asked: Quantization) -> Tensor:
    """The matrix in the operand's orientation."""
    x_MK = plain(asked.x_MK)
    return x_MK.t() if asked.transposed else x_MK


def noise_arguments(asked: Quantization) -> NoiseArguments:
    """The noise's tensors on x's device (none without noise)."""
    noise, device = asked.noise, asked.x_MK.device
    if noise is None:
        return NoiseArguments(None, None, 0, (0, 0))
    row_ids = noise.row_ids
    if row_ids is not None:
        row_ids = row_ids.to(device, torch.int64).contiguous()
        assert row_ids.shape == (asked.x_MK.shape[0],)
    state = noise.state.to(device, torch.int64).contiguous()
    return NoiseArguments(state, row_ids, noise.column_offset, salts(noise.stream, noise.bits))


def how_to(asked: Quantization, result: Result, dtype: torch.dtype, *, native: bool = False) -> How:
    """The constants of a kernel, which does the Hadamard transform too where there is one."""
    noise, transform = asked.noise, asked.hadamard
    bits = 0 if noise is None else noise.bits
    return How(
        result=int(result),
        dtype=DTYPES[asked.x_MK.dtype],
        out_dtype=DTYPES[dtype],
        transposed=asked.transposed,
        hadamard=0 if transform is None else transform.size,
        signs=0 if transform is None else sign_mask(transform.vector),
        noise_bits=bits,
        aligned=noise is None or is_aligned(bits, noise.column_offset),
        native=native,
    )


def amax_how(how: How) -> How:
    """The constants of an amax kernel, the same for all that follows it."""
    return replace(
        how, result=0, out_dtype=0, transposed=False, noise_bits=0, aligned=True, native=False
    )


def prepared(
    asked: Quantization,
    result: Result,
    dtype: torch.dtype,
    *,
    native: bool = False,
    tile: tuple[int, int] | None = None,
    amax: Tensor | None = None,
) -> Operand:
    """The operand with a Hadamard transform too large to fuse done, and amax found."""
    x_MK, tile, rest = plain_matrix(asked), tile or tile_of(asked), asked
    if asked.hadamard is not None and asked.hadamard.size > LARGEST_FUSED:
        stored = torch.empty(asked.x_MK.shape, dtype=x_MK.dtype, device=x_MK.device)
        out_MK = stored.t() if asked.transposed else stored
        transform_rows(x_MK, out_MK, asked.hadamard)
        x_MK, rest = out_MK, asked._replace(hadamard=None)
    how = how_to(rest, result, dtype, native=native)
    plan, level = Plan.of(asked.format, tile), asked.format.level
    whole = None if plan.whole == 0 else _amax(x_MK, how, tile, by_row=plan.whole == 2)
    if level == Level.NONE:
        amax = torch.zeros(0, dtype=torch.float32, device=x_MK.device)
    elif asked.amax is not None:
        assert asked.amax.shape == amax_shape(asked.format, x_MK.shape[0])
        amax = positive_nan_(asked.amax.to(x_MK.device, torch.float32, copy=True).contiguous())
    elif amax is None and triton_columns.takes(asked):
        amax = triton_columns.amax(asked, amax_how(how))
    elif amax is None:
        amax = _amax(x_MK, how, tile, by_row=level == Level.ROW)
    return Operand(asked, x_MK, how, plan, tile, amax, whole)


def _amax(x_MK: Tensor, how: How, tile: tuple[int, int], *, by_row: bool) -> Tensor:
    rows, columns = x_MK.shape
    amax = torch.zeros(rows if by_row else 1, dtype=torch.float32, device=x_MK.device)
    repeat = 1 if how.hadamard else min(4, triton.cdiv(columns, tile[1]))
    launch(
        amax_kernel,
        triton.cdiv(rows, tile[0]) * triton.cdiv(columns, tile[1] * repeat),
        (as_integers(x_MK), amax.view(torch.int32), rows, columns, *x_MK.stride()),
        warps=warps(tile),
        how=amax_how(how),
        by_row=by_row,
        REPEAT=repeat,
        ROWS=tile[0],
        COLUMNS=tile[1],
    )
    return amax


def amax(asked: Quantization) -> Tensor:
    """The second-level amax that the operand would get: float32 `[1]`, `[M]` or `[0]`.

    NaN where there is one. That of a Hadamard transform is taken after rounding to x's dtype.
    """
    return prepared(asked._replace(amax=None), Result.OPERAND, torch.float32).amax


def _run(operand: Operand, out: Tensor, scales: Tensor | None, turned: bool = False) -> None:
    noise = noise_arguments(operand.asked)
    if triton_columns.takes(operand.asked) and not operand.how.native:
        amax = operand.amax if operand.amax.numel() else None
        tensors = (out, scales, amax)
        triton_columns.run(operand.asked, operand.how, operand.plan, noise, tensors, turned=turned)
        return
    # 4-over-6 and Hadamard hold every element twice; fewer a thread keep them in registers
    twice = operand.plan.selection or 0 < operand.how.hadamard <= 16
    launch(
        quantize_kernel,
        operand.programs,
        (
            as_integers(operand.x_MK),
            as_integers(out),
            scales,
            operand.amax if operand.amax.numel() else None,
            operand.block_amax,
            noise.state,
            noise.row_ids,
            *operand.x_MK.shape,
            *operand.x_MK.stride(),
            *out.stride(),
            noise.column_offset,
            *noise.salts,
        ),
        warps=warps(operand.tile, 16 if twice else 32),
        plan=operand.plan,
        how=operand.how,
        ROWS=operand.tile[0],
        COLUMNS=operand.tile[1],
    )


def values(asked: Quantization, dtype: torch.dtype, turned: bool) -> Tensor:
    """Memory for a value of every element, laid out as x is stored or `turned` to row-major."""
    shape = asked.shape if turned else asked.x_MK.shape
    out = torch.empty(shape, dtype=dtype, device=asked.x_MK.device)
    return out.t() if asked.transposed and not turned else out


def _scales(asked: Quantization) -> Tensor:
    """Memory for the block scales of an operand."""
    fmt, shape = asked.format, scales_shape(asked.format, *asked.shape)
    return torch.empty(shape, dtype=scales_dtype(fmt), device=asked.x_MK.device)


def native_format(asked: Quantization) -> bool:
    """Whether the conversion instructions round as the format says (see `triton_native`)."""
    fmt, bits = asked.format, 0 if asked.noise is None else asked.noise.bits
    rounds = fmt.ties == Ties.EVEN and fmt.overflow == Overflow.SATURATE
    return fmt.element == E2M1 and fmt.scale is not None and rounds and bits in (0, 8)


def takes_native(asked: Quantization) -> bool:
    """Whether x's GPU has these instructions, and their codes are the portable ones: to nearest."""
    device = asked.x_MK.device
    return (
        takes(asked)
        and native_format(asked)
        and asked.noise is None
        and device.type == "cuda"
        and torch.cuda.get_device_capability(device)[0] in BLOCK_SCALED
    )


def codes_and_scales(asked: Quantization, *, native: bool = False) -> list[Tensor]:
    """What is stored: codes `[M, K]` (4-bit ones packed), scales `[R, C]`, amax.

    `native` uses the chip's conversion: where `takes_native` says so with the same result, and on
    sm_100 also for 8 bits of noise, with another draw.
    """
    assert not native or native_format(asked)
    fmt, device = asked.format, asked.x_MK.device
    operand = prepared(asked, Result.CODES, torch.float32, native=native)
    shape = codes_shape(fmt, *asked.shape)
    codes = torch.empty(shape, dtype=code_dtype(fmt.element), device=device)
    scales = _scales(asked)
    _run(operand, codes, scales if scales.numel() else None)
    return [codes, scales, operand.amax]


def dequantized(asked: Quantization, dtype: torch.dtype) -> Tensor:
    """What codes and scales stand for, rounded to `dtype`, with the strides of the operand."""
    out = values(asked, dtype, False)
    _run(prepared(asked, Result.DEQUANTIZED, out.dtype), out, None)
    return out


def operand(
    asked: Quantization, dtype: torch.dtype = torch.float32, turned: bool = False
) -> tuple[Tensor, Tensor]:
    """What enters a product (element times block scale), and what is left for its epilogue.

    In float32, or in bf16, which is exact where `asked.format.operand_fits_bf16`; with the strides
    of the operand, or `turned` to row-major.
    """
    out = values(asked, dtype, turned)
    quantized = prepared(asked, Result.OPERAND, dtype)
    late = None
    if asked.format.whole_rows:
        rows = asked.shape[0] if asked.format.block == (1, WHOLE) else 1
        late = torch.empty(rows, dtype=torch.float32, device=out.device)
    _run(quantized, out, late, turned)
    return out, epilogue(quantized, late)


def epilogue(operand: Operand, late: Tensor | None = None) -> Tensor:
    """What multiplies a product after the fact; `late` are scales of whole rows."""
    fmt = operand.asked.format
    if late is not None:
        return late.view(-1, 1) if fmt.block == (1, WHOLE) else late
    return operand.amax.view(-1, 1) if fmt.level == Level.ROW else operand.amax
