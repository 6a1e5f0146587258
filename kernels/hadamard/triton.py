# mypy: disable-error-code="untyped-decorator, assignment"
"""The Hadamard transform with the reference's sums: from left to right, scaled last.

Small transforms run on a tile in registers, so that quantizers fuse them. The sums over the first
2^m terms are equal for all outputs j with the same j mod 2^m, so a size of 16 takes 171 additions
instead of 256. Larger transforms are a kernel of their own, which reads one term after another.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from fp4lab.formats import Hadamard
from fp4lab.kernels.hadamard.reference import check_extent
from fp4lab.kernels.minifloat.triton import rounded_to, stored_as, to_float32
from fp4lab.kernels.schema import DTYPES
from fp4lab.kernels.triton.constants import float32
from fp4lab.kernels.triton.launch import INTERPRETED, as_integers, launch, plain, readable

#: largest size that runs in registers
LARGEST_FUSED = 32
#: largest size that a kernel takes
LARGEST = 1024
#: bit n is the parity of the ones of n; a sign bit is a bit like the others
PARITY_OF_5 = tl.constexpr(0x96696996 - (1 << 32))


@triton.jit
def split_columns(x: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """The columns of `[ROWS, COLUMNS]`, 2 to 32 of them, as a tuple of `[ROWS]`.

    The bits of a column's number are axes of their own from the start: splitting them off one after
    another then moves nothing between threads.
    """
    if COLUMNS == 2:
        parts = (tl.reshape(x, (ROWS, 2)),)
    elif COLUMNS == 4:
        parts = (tl.reshape(x, (ROWS, 2, 2)),)
    elif COLUMNS == 8:
        parts = (tl.reshape(x, (ROWS, 2, 2, 2)),)
    elif COLUMNS == 16:
        parts = (tl.reshape(x, (ROWS, 2, 2, 2, 2)),)
    else:
        parts = (tl.reshape(x, (ROWS, 2, 2, 2, 2, 2)),)
    for level in tl.static_range(5):
        if COLUMNS >> level > 1:
            a, b = tl.split(parts[0])
            even = (a,)
            odd = (b,)
            for part in tl.static_range(1, 1 << level):
                a, b = tl.split(parts[part])
                even = even + (a,)
                odd = odd + (b,)
            parts = even + odd
    return parts


@triton.jit
def join_columns(columns: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """Inverse of `split_columns`."""
    parts = columns
    for level in tl.static_range(5):
        if COLUMNS >> (level + 1) > 0:
            joined = (tl.join(parts[0], parts[COLUMNS >> (level + 1)]),)
            for part in tl.static_range(1, COLUMNS >> (level + 1)):
                pair = tl.join(parts[part], parts[part + (COLUMNS >> (level + 1))])
                joined = joined + (pair,)
            parts = joined
    return tl.reshape(parts[0], (ROWS, COLUMNS))


@triton.jit
def hadamard_tile(
    x: tl.tensor,
    size: tl.constexpr,
    signs: tl.constexpr,
    dtype: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """The transform of a float32 tile along its columns, rounded to the dtype of the tensor."""
    GROUPS: tl.constexpr = ROWS * COLUMNS // size
    scale: tl.constexpr = size**-0.5
    if size == 1:
        y = 0.0 - x if signs == 1 else 0.0 + x
    else:
        x_k = split_columns(tl.reshape(x, (GROUPS, size)), GROUPS, size)
        # what the sums start with decides the sign of a sum of zeros
        sums = (0.0 - x_k[0] if signs & 1 else 0.0 + x_k[0],)
        for k in tl.static_range(1, size):
            if k & (k - 1) == 0:
                sums = sums + sums
            sums = add_term(sums, x_k[k], k, signs)
        y = tl.reshape(join_columns(sums, GROUPS, size), (ROWS, COLUMNS)) * scale
    return rounded_to(y, dtype)


@triton.jit
def add_term(sums: tl.tensor, x: tl.tensor, k: tl.constexpr, signs: tl.constexpr) -> tl.tensor:
    """The partial sums, a power of two above k of them, with term k added."""
    NEGATIVE: tl.constexpr = (signs >> k) & 1
    first = sums[0] - x if NEGATIVE else sums[0] + x
    added = (first,)
    for j in tl.static_range(1, len(sums)):
        # the sign of H_kj is the parity of the ones of k & j, which has at most 5
        if (((0x6996 >> (k & j & 15)) ^ ((k & j) >> 4)) & 1) ^ NEGATIVE:
            added = added + (sums[j] - x,)
        else:
            added = added + (sums[j] + x,)
    return added


@triton.jit
def hadamard_kernel(
    x_ptr: tl.tensor,
    signs_ptr: tl.tensor,
    out_ptr: tl.tensor,
    num_rows: tl.tensor,
    num_groups: tl.tensor,
    x_row_stride: tl.tensor,
    x_column_stride: tl.tensor,
    out_row_stride: tl.tensor,
    out_column_stride: tl.tensor,
    scale: tl.tensor,
    dtype: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Transform along columns: a program takes ROWS groups of SIZE, wherever they lie."""
    group = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row, first = group // num_groups, (group % num_groups) * SIZE
    inside = row < num_rows
    x_at = x_ptr + row * x_row_stride + first * x_column_stride
    j = tl.arange(0, SIZE)[None, :]
    y = tl.zeros((ROWS, SIZE), tl.float32)
    k = 0
    while k < SIZE:
        x = to_float32(tl.load(x_at + k * x_column_stride, mask=inside, other=0), dtype)
        if signs_ptr is not None:
            x = x * tl.load(signs_ptr + k)
        # the parity of the ones of at most 10 bits: 5 of them folded onto 5, and those looked up
        folded = (j & k) ^ ((j & k) >> 5)
        odd = ((PARITY_OF_5 >> (folded & 31)) & 1) != 0
        y = tl.where(odd, y - x[:, None], y + x[:, None])
        k += 1
    out_at = out_ptr + row[:, None] * out_row_stride + (first[:, None] + j) * out_column_stride
    tl.store(out_at, stored_as(y * scale, dtype), mask=inside[:, None])


def takes(x: Tensor, size: int) -> bool:
    """Whether a kernel computes this transform."""
    return readable(x) and x.dtype in DTYPES and size <= LARGEST


def hadamard(x: Tensor, transform: Hadamard, dim: int = -1) -> Tensor:
    """`reference.hadamard` for float32, bf16 and fp16, contiguous; NaN is the one of its dtype."""
    check_extent(x, transform, dim)
    x = plain(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x_rows, out_rows = (t.movedim(dim, -1) for t in (x, out))
    if x.dim() != 2:
        x_rows = x_rows.reshape(-1, x.shape[dim])
        rows = torch.empty_like(x_rows, memory_format=torch.contiguous_format)
        transform_rows(x_rows, rows, transform)
        out_rows.copy_(rows.view(out_rows.shape))
    else:
        transform_rows(x_rows, out_rows, transform)
    return out


@lru_cache(maxsize=64)
def _signs(transform: Hadamard, device: torch.device) -> Tensor:
    """Signs on the device; kept, for copying them there waits for it."""
    return torch.tensor(transform.vector, dtype=torch.float32, device=device)


def transform_rows(x_MK: Tensor, out_MK: Tensor, transform: Hadamard) -> None:
    """Write the transform of the rows of a matrix into another one of its shape and dtype."""
    (rows, columns), size = x_MK.shape, transform.size
    groups = columns // size
    # the interpreter's time is a program's, not an element's
    most = max(1, (131072 if INTERPRETED else 4096) // size)
    per_program = min(most, triton.next_power_of_2(rows * groups))
    launch(
        hadamard_kernel,
        triton.cdiv(rows * groups, per_program),
        (
            as_integers(x_MK),
            _signs(transform, x_MK.device) if transform.vector else None,
            as_integers(out_MK),
            rows,
            groups,
            *x_MK.stride(),
            *out_MK.stride(),
            float32(size**-0.5),
        ),
        dtype=DTYPES[x_MK.dtype],
        SIZE=size,
        ROWS=per_program,
    )
