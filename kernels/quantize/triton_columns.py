# mypy: disable-error-code="untyped-decorator, assignment, var-annotated"
"""Operands of a transposed matrix whose blocks are 16 or 32 long, without moving its elements.

A block and a Hadamard group lie along the stored rows. A program reads those rows one by one, as
vectors along the stored columns: sums, largest magnitudes and rounding then go from vector to
vector, and no element ever changes its thread. What is written row-major of the transpose (codes,
turned values) is put together once, at the end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fp4lab.formats import Level, Selection
from fp4lab.kernels.minifloat.triton import INFINITY, NAN, encode, stored_as
from fp4lab.kernels.philox.triton import NoiseArguments
from fp4lab.kernels.quantize.reference import Quantization
from fp4lab.kernels.quantize.triton_kernels import CODES, DEQUANTIZED
from fp4lab.kernels.quantize.triton_scales import NO_LEVEL, block_scales, scale_codes
from fp4lab.kernels.quantize.triton_tiles import ROW, rounded
from fp4lab.kernels.quantize.triton_vectors import (
    hadamard_sums,
    largest_bits,
    load_rows,
    noise_rows,
    transformed,
    write_codes,
    write_values,
)
from fp4lab.kernels.triton.constants import How, Plan
from fp4lab.kernels.triton.launch import as_integers, launch, plain

#: stored columns of a program, two of a thread, whose 32 or 64 numbers then fit its registers
WIDTH = 256
#: blocks of a program: their codes fill the 32 bytes that memory moves at least
REPEAT = 4


def takes(asked: Quantization) -> bool:
    """Whether these kernels compute a case that `quantize.triton` takes; they need whole blocks."""
    fmt, size = asked.format, asked.hadamard_size
    return (
        asked.transposed
        and fmt.block in ((1, 16), (1, 32))
        and fmt.selection == Selection.NONE
        and fmt.element.bits <= 8
        and (asked.shape[1] % fmt.block[1], fmt.block[1] % size) == (0, 0)
        and (asked.hadamard is None or size > 1)
    )


@triton.jit
def columns_amax_kernel(
    x_ptr: tl.tensor,
    amax_ptr: tl.tensor,
    plain_ptr: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    how: tl.constexpr,
    by_column: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    REPEAT: tl.constexpr,
) -> None:
    """Largest magnitude of the transformed matrix, or of its columns, as bits into zeros.

    And that of the matrix as it is, where there is a place for it.
    """
    across = tl.cdiv(num_columns, WIDTH)
    pid = tl.program_id(0).to(tl.int64)
    column = (pid % across) * WIDTH + tl.arange(0, WIDTH)
    first = (pid // across) * (REPEAT * BLOCK)
    most = tl.zeros((WIDTH,), tl.int32)
    plain = tl.zeros((WIDTH,), tl.int32)
    for repeat in range(REPEAT):
        row = first + repeat * BLOCK
        inside = column < tl.where(row < num_rows, num_columns, 0)
        rows = load_rows(x_ptr, row, column, inside, row_stride, column_stride, how, BLOCK)
        if plain_ptr is not None:
            plain = tl.maximum(plain, largest_bits(rows, BLOCK))
        most = tl.maximum(most, largest_bits(hadamard_sums(rows, how, BLOCK), BLOCK))
    # scaling and rounding keep an order, so those of the largest sum are enough
    most = transformed(most.to(tl.float32, bitcast=True), how).to(tl.int32, bitcast=True)
    most = tl.where(most > INFINITY, NAN, most)
    if by_column:
        tl.atomic_max(amax_ptr + column, most, mask=column < num_columns)
    else:
        tl.atomic_max(amax_ptr, tl.max(most, axis=0))
    if plain_ptr is not None:
        plain = tl.where(plain > INFINITY, NAN, plain)
        tl.atomic_max(plain_ptr, tl.max(plain, axis=0))


@triton.jit(do_not_specialize=["column_offset", "salt_low", "salt_high"])
def columns_kernel(
    x_ptr: tl.tensor,
    out_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    amax_ptr: tl.tensor,
    state_ptr: tl.tensor,
    row_ids_ptr: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    column_offset: tl.tensor,
    salt_low: tl.tensor,
    salt_high: tl.tensor,
    plan: tl.constexpr,
    how: tl.constexpr,
    turned: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    REPEAT: tl.constexpr,
) -> None:
    """One operand: blocks of BLOCK stored rows, WIDTH columns of them, REPEAT after another."""
    # neighbouring programs write neighbouring parts of the transpose's rows
    down = tl.cdiv(num_rows, BLOCK * REPEAT)
    pid = tl.program_id(0).to(tl.int64)
    for repeat in range(REPEAT):
        write_blocks(
            x_ptr,
            (pid % down) * (BLOCK * REPEAT) + repeat * BLOCK,
            (pid // down) * WIDTH,
            num_rows,
            num_columns,
            row_stride,
            column_stride,
            out_ptr,
            scales_ptr,
            amax_ptr,
            state_ptr,
            row_ids_ptr,
            column_offset,
            salt_low,
            salt_high,
            plan,
            how,
            turned,
            BLOCK,
            WIDTH,
        )


@triton.jit
def write_blocks(
    x_ptr: tl.tensor,
    row: tl.tensor,
    first_column: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    out_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    amax_ptr: tl.tensor,
    state_ptr: tl.tensor,
    row_ids_ptr: tl.tensor,
    column_offset: tl.tensor,
    salt_low: tl.tensor,
    salt_high: tl.tensor,
    plan: tl.constexpr,
    how: tl.constexpr,
    turned: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Load, transform, quantize and write WIDTH blocks side by side, and their scales."""
    element: tl.constexpr = plan.element
    kind: tl.constexpr = plan.scale
    column = first_column + tl.arange(0, WIDTH)
    inside = column < tl.where(row < num_rows, num_columns, 0)
    outer = tl.full((1,), 1.0, tl.float32)
    if plan.level == ROW:
        outer = tl.load(amax_ptr + column, mask=column < num_columns, other=1.0)
    elif plan.level != NO_LEVEL:
        outer = tl.load(amax_ptr + tl.zeros((1,), tl.int32))
    rows = load_rows(x_ptr, row, column, inside, row_stride, column_stride, how, BLOCK)
    sums = hadamard_sums(rows, how, BLOCK)
    most = largest_bits(sums, BLOCK).to(tl.float32, bitcast=True)
    block_amax = transformed(most, how)
    scale, multiplier = block_scales(block_amax, outer, plan, 1.0)
    random = ()
    if how.noise_bits > 0:
        random = noise_rows(
            state_ptr,
            row_ids_ptr,
            row,
            first_column + column_offset,
            num_rows,
            salt_low,
            salt_high,
            how,
            BLOCK,
            WIDTH,
        )
    factor = scale
    if how.result == DEQUANTIZED and plan.level != NO_LEVEL:
        factor = (scale * outer) * plan.inverse_factor
    made = ()
    for k in tl.static_range(BLOCK):
        v = transformed(sums[k], how) * multiplier
        if not plan.keep_negative_zero:
            v = v + 0.0
        q = rounded(v, random[k] if how.noise_bits > 0 else 0, plan, how.noise_bits)
        if how.result == CODES:
            made = made + (encode(q, element),)
        else:
            made = made + (stored_as(q * factor, how.out_dtype),)
    if how.result == CODES:
        kept = scale_codes(scale, kind).to(scales_ptr.dtype.element_ty)
        at = scales_ptr + column * (num_rows // BLOCK) + row // BLOCK
        tl.store(at, kept, mask=inside)
        write_codes(made, out_ptr, column, row, inside, num_rows, plan, BLOCK, WIDTH)
    else:
        write_values(
            made, out_ptr, column, row, inside, num_rows, num_columns, turned, BLOCK, WIDTH
        )


def amax(asked: Quantization, how: How, plain_amax: Tensor | None = None) -> Tensor:
    """The second-level amax of the operand: `[1]`, or `[M]` for each of its rows.

    The amax of the matrix without the transform goes into `plain_amax`, which holds a zero.
    """
    x, by_column = plain(asked.x_MK), asked.format.level == Level.ROW
    rows, columns = x.shape
    block, width, repeat = extents(asked)
    amax = torch.zeros(columns if by_column else 1, dtype=torch.float32, device=x.device)
    launch(
        columns_amax_kernel,
        triton.cdiv(rows, block * repeat) * triton.cdiv(columns, width),
        (
            as_integers(x),
            amax.view(torch.int32),
            None if plain_amax is None else plain_amax.view(torch.int32),
            rows,
            columns,
            *x.stride(),
        ),
        how=how,
        by_column=by_column,
        BLOCK=block,
        WIDTH=width,
        REPEAT=repeat,
    )
    return amax


def extents(asked: Quantization) -> tuple[int, int, int]:
    """Rows of a block, columns and blocks of a program."""
    assert asked.format.block is not None
    block = asked.format.block[1]
    return block, WIDTH, min(REPEAT, asked.shape[1] // block)


def run(
    asked: Quantization,
    how: How,
    plan: Plan,
    noise: NoiseArguments,
    tensors: tuple[Tensor, Tensor | None, Tensor | None],
    *,
    turned: bool,
) -> None:
    """Write an operand: `tensors` are what is written, block scales for codes, and amax.

    `turned` values are row-major; others are laid out as x is stored.
    """
    x = plain(asked.x_MK)
    out, scales, amax = tensors
    block, width, repeat = extents(asked)
    launch(
        columns_kernel,
        triton.cdiv(x.shape[0], block * repeat) * triton.cdiv(x.shape[1], width),
        (
            as_integers(x),
            out.view(torch.int32) if how.result == CODES.value else as_integers(out),
            scales,
            amax,
            noise.state,
            noise.row_ids,
            *x.shape,
            *x.stride(),
            noise.column_offset,
            *noise.salts,
        ),
        warps=width // 64,
        plan=plan,
        how=how,
        turned=turned,
        BLOCK=block,
        WIDTH=width,
        REPEAT=repeat,
    )
