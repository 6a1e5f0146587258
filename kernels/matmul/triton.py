# mypy: disable-error-code="untyped-decorator"
"""Products of quantized matrices on any GPU: bf16 products, float32 sums, alpha at the end.

Codes become element times block scale in registers, exact in bf16 for the formats taken, so that
the products are exact and only the order of the sums is the machine's. The epilogues multiply what
is summed, as `reference.epilogue_alpha` says. Factors that are operands in bf16 already are taken
too, also mixed with codes.

Letters: M and N rows of the factors, K what is contracted, E groups (experts).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fp4lab.formats import WHOLE, BlockFormat
from fp4lab.kernels.matmul.reference import alpha_divisor
from fp4lab.kernels.minifloat.triton import stored_as
from fp4lab.kernels.quantize.triton_kernels import OPERAND
from fp4lab.kernels.quantize.triton_stored import stored_tile
from fp4lab.kernels.schema import DTYPES
from fp4lab.kernels.triton.constants import Plan, float32
from fp4lab.kernels.triton.launch import as_integers, launch, runs_on


class Factor(NamedTuple):
    """One side of a product, `[rows, K]` (or `[E, rows, K]` with a leading axis on all tensors).

    `values` are codes as they are stored, with their scales and format, or an operand in bf16, with
    neither scales nor, if it is in high precision, a format. `epilogue` is what `operand` returns:
    one number, one for each row, or none.
    """

    values: Tensor
    scales: Tensor | None
    epilogue: Tensor
    format: BlockFormat | None
    num_columns: int

    @property
    def is_stored(self) -> bool:
        """Whether `values` are codes."""
        return self.values.dtype == torch.uint8


def takes(factor: Factor) -> bool:
    """Whether the kernel reads this side."""
    fmt = factor.format
    if not runs_on(factor.values.device) or factor.values.numel() == 0:
        return False
    if not factor.is_stored:
        return factor.values.dtype == torch.bfloat16
    if fmt is None or not fmt.operand_fits_bf16:
        return False
    sides = fmt.block or (1, 1)
    return fmt.whole_rows or (WHOLE not in sides and sides[1] & (sides[1] - 1) == 0)


@triton.jit
def bf16_tile(
    values_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    row: tl.tensor,
    num_rows: tl.tensor,
    first_k: tl.tensor,
    K: tl.tensor,
    width: tl.tensor,
    plan: tl.constexpr,
    RUN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """A bf16 tile of a factor, 0 outside; `row` is int64 `[ROWS, 1]`."""
    if plan is None:
        k = first_k + tl.arange(0, COLUMNS)[None, :]
        bits = tl.load(values_ptr + row * K + k, mask=(row < num_rows) & (k < K), other=0)
    else:
        values = stored_tile(
            values_ptr,
            scales_ptr,
            None,
            row,
            first_k,
            num_rows,
            K,
            width,
            plan.block_rows,
            plan.block_columns,
            plan,
            OPERAND,
            RUN,
            ROWS,
            COLUMNS,
        )
        # exact: the lower half of these numbers is 0
        bits = (values.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
    return bits.to(tl.bfloat16, bitcast=True)


@triton.jit
def alpha_tile(
    a_ptr: tl.tensor,
    b_ptr: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    factor: tl.constexpr,
    a_by_row: tl.constexpr,
    b_by_row: tl.constexpr,
) -> tl.tensor:
    """`reference.epilogue_alpha` of a tile; `row` is `[M, 1]`, `column` `[1, N]`."""
    alpha = tl.full((1, 1), 1.0, tl.float32)
    if a_ptr is not None:
        if a_by_row:
            alpha = tl.load(a_ptr + row, mask=row < num_rows, other=0.0)
        else:
            alpha = tl.load(a_ptr + tl.zeros((1, 1), tl.int32))
    if b_ptr is not None:
        if b_by_row:
            b = tl.load(b_ptr + column, mask=column < num_columns, other=0.0)
        else:
            b = tl.load(b_ptr + tl.zeros((1, 1), tl.int32))
        alpha = alpha * b
    if factor != 1.0:
        alpha = tl.div_rn(alpha, tl.full(alpha.shape, factor, tl.float32))
    return alpha


@triton.jit
def product_tile(
    a_ptr: tl.tensor,
    a_scales_ptr: tl.tensor,
    b_ptr: tl.tensor,
    b_scales_ptr: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    K: tl.tensor,
    a_width: tl.tensor,
    b_width: tl.tensor,
    a_plan: tl.constexpr,
    b_plan: tl.constexpr,
    a_run: tl.constexpr,
    b_run: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> tl.tensor:
    """float32 sums over K of a tile; `row` and `column` are int64, both `[.., 1]`."""
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, K, DEPTH):
        a = bf16_tile(a_ptr, a_scales_ptr, row, num_rows, k, K, a_width, a_plan, a_run, ROWS, DEPTH)
        b = bf16_tile(
            b_ptr,
            b_scales_ptr,
            column,
            num_columns,
            k,
            K,
            b_width,
            b_plan,
            b_run,
            COLUMNS,
            DEPTH,
        )
        sums = tl.dot(a, tl.trans(b), sums)
    return sums


@triton.jit
def matmul_kernel(
    a_ptr: tl.tensor,
    a_scales_ptr: tl.tensor,
    a_epilogue_ptr: tl.tensor,
    b_ptr: tl.tensor,
    b_scales_ptr: tl.tensor,
    b_epilogue_ptr: tl.tensor,
    out_ptr: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    a_width: tl.tensor,
    b_width: tl.tensor,
    a_plan: tl.constexpr,
    b_plan: tl.constexpr,
    a_run: tl.constexpr,
    b_run: tl.constexpr,
    factor: tl.constexpr,
    a_by_row: tl.constexpr,
    b_by_row: tl.constexpr,
    out_dtype: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """One tile of `a @ b^T * alpha`; neighbouring programs share rows of 8 tiles in the cache."""
    across, down = tl.cdiv(N, COLUMNS), tl.cdiv(M, ROWS)
    pid = tl.program_id(0)
    band = pid // (8 * across)
    height = tl.minimum(down - band * 8, 8)
    tile_row = band * 8 + (pid % (8 * across)) % height
    tile_column = (pid % (8 * across)) // height
    row = tile_row.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tile_column.to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    sums = product_tile(
        a_ptr,
        a_scales_ptr,
        b_ptr,
        b_scales_ptr,
        row[:, None],
        column[:, None],
        M,
        N,
        K,
        a_width,
        b_width,
        a_plan,
        b_plan,
        a_run,
        b_run,
        ROWS,
        COLUMNS,
        DEPTH,
    )
    row, column = row[:, None], column[None, :]
    sums = sums * alpha_tile(
        a_epilogue_ptr, b_epilogue_ptr, row, column, M, N, factor, a_by_row, b_by_row
    )
    inside = (row < M) & (column < N)
    tl.store(out_ptr + row * N + column, stored_as(sums, out_dtype), mask=inside)


def plan_of(factor: Factor, tile: tuple[int, int]) -> tuple[Plan | None, int]:
    """The constants of codes (None for bf16), and how many neighbours in a row share a scale."""
    if not factor.is_stored or factor.format is None:
        return None, 1
    columns = (factor.format.block or (1, 1))[1] or tile[1]
    return Plan.of(factor.format, tile), min(columns, tile[1])


def constants_of(
    a: Factor, b: Factor, dtype: torch.dtype, rows: int, columns: int, depth: int
) -> dict[str, Any]:
    """What kernels of products are compiled for: both sides, the result and the tile."""
    a_plan, a_run = plan_of(a, (rows, depth))
    b_plan, b_run = plan_of(b, (columns, depth))
    return {
        "a_plan": a_plan,
        "b_plan": b_plan,
        "a_run": a_run,
        "b_run": b_run,
        "factor": float32(alpha_divisor(a.format, b.format)),
        "a_by_row": a.epilogue.numel() > 1,
        "out_dtype": DTYPES[dtype],
        "ROWS": rows,
        "COLUMNS": columns,
        "DEPTH": depth,
    }


def tensors_of(factor: Factor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Values, scales and epilogue as kernels take them."""
    scales, epilogue = factor.scales, factor.epilogue
    if scales is not None and scales.numel() == 0:
        scales = None
    return (
        as_integers(factor.values.contiguous()),
        None if scales is None else scales.contiguous(),
        None if epilogue.numel() == 0 else epilogue.to(torch.float32).contiguous(),
    )


def matmul(a_MK: Factor, b_NK: Factor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`a @ b^T * alpha`, rounded once to `dtype` (float32, bf16 or fp16)."""
    assert a_MK.num_columns == b_NK.num_columns
    M, N, K = a_MK.values.shape[0], b_NK.values.shape[0], a_MK.num_columns
    out = torch.empty((M, N), dtype=dtype, device=a_MK.values.device)
    rows, columns, depth = 128, 128, 64
    launch(
        matmul_kernel,
        triton.cdiv(M, rows) * triton.cdiv(N, columns),
        (
            *tensors_of(a_MK),
            *tensors_of(b_NK),
            as_integers(out),
            M,
            N,
            K,
            a_MK.values.shape[1],
            b_NK.values.shape[1],
        ),
        warps=8,
        b_by_row=b_NK.epilogue.numel() > 1,
        **constants_of(a_MK, b_NK, dtype, rows, columns, depth),
    )
    return out
