# mypy: disable-error-code="untyped-decorator"
"""Products of 4-bit blocks by Blackwell's own instructions (sm_100 and sm_120): two routes.

`matmul` is a Triton kernel on `tl.dot_scaled`; the matrix unit multiplies codes and block scales,
and reads the scales in 128x4 tiles (`layout/reference.py`) through tensor descriptors.
`library_matmul` asks torch, which asks cuBLAS. The order of the sums is the machine's in both.

On other GPUs `tl.dot_scaled` would dequantize too, badly, and with Triton 3.6 not compile; the
portable kernel serves them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from fp4lab.formats import E2M1, E4M3, E8M0, BlockFormat
from fp4lab.kernels.capability import BLOCK_SCALED
from fp4lab.kernels.layout.reference import swizzle_128x4
from fp4lab.kernels.matmul.reference import alpha_divisor, epilogue_alpha
from fp4lab.kernels.matmul.triton import Factor, alpha_tile, tensors_of
from fp4lab.kernels.minifloat.triton import stored_as
from fp4lab.kernels.schema import DTYPES
from fp4lab.kernels.triton.constants import float32
from fp4lab.kernels.triton.launch import INTERPRETED, as_integers, launch


@triton.jit
def scaled_kernel(
    a_desc: tl.tensor,
    a_scales_desc: tl.tensor,
    a_epilogue_ptr: tl.tensor,
    b_desc: tl.tensor,
    b_scales_desc: tl.tensor,
    b_epilogue_ptr: tl.tensor,
    out_ptr: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    factor: tl.constexpr,
    a_by_row: tl.constexpr,
    b_by_row: tl.constexpr,
    out_dtype: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """One tile of `a @ b^T * alpha`; GROUP elements share a scale."""
    across = tl.cdiv(N, COLUMNS)
    tile_row, tile_column = tl.program_id(0) // across, tl.program_id(0) % across
    SCALES: tl.constexpr = DEPTH // GROUP
    DOWN: tl.constexpr = ROWS // 128
    ACROSS: tl.constexpr = COLUMNS // 128
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, K, DEPTH):
        a = a_desc.load([tile_row * ROWS, k // 2])
        b = b_desc.load([tile_column * COLUMNS, k // 2])
        at = k // (GROUP * 4)
        a_scales = a_scales_desc.load([0, tile_row * DOWN, at, 0, 0])
        b_scales = b_scales_desc.load([0, tile_column * ACROSS, at, 0, 0])
        a_scales = a_scales.reshape(DOWN, SCALES // 4, 32, 4, 4).trans(0, 3, 2, 1, 4)
        b_scales = b_scales.reshape(ACROSS, SCALES // 4, 32, 4, 4).trans(0, 3, 2, 1, 4)
        sums = tl.dot_scaled(
            a,
            a_scales.reshape(ROWS, SCALES),
            "e2m1",
            b.T,
            b_scales.reshape(COLUMNS, SCALES),
            "e2m1",
            sums,
        )
    row = (tile_row.to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tile_column.to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    sums = sums * alpha_tile(
        a_epilogue_ptr, b_epilogue_ptr, row, column, M, N, factor, a_by_row, b_by_row
    )
    inside = (row < M) & (column < N)
    tl.store(out_ptr + row * N + column, stored_as(sums, out_dtype), mask=inside)


def takes(a: Factor, b: Factor, device: str | torch.device) -> bool:
    """Whether `matmul` computes it: E2M1 codes, both with E4M3 scales per 16 or E8M0 per 32.

    On GPUs with block-scaled matrix instructions, of whole 16-byte rows of codes.
    """
    dtypes = [side.is_stored and _scale_dtype(side.format) for side in (a, b)]
    rows_fit = all(side.num_columns % 32 == 0 for side in (a, b))
    same = bool(dtypes[0]) and dtypes[0] == dtypes[1]
    return same and rows_fit and _multiplies(torch.device(device))


def _multiplies(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] in BLOCK_SCALED
    # older interpreters have no dot_scaled
    major, minor = triton.__version__.split(".")[:2]
    return INTERPRETED and (int(major), int(minor)) >= (3, 9)


def _scale_dtype(fmt: BlockFormat | None) -> torch.dtype | None:
    """The dtype whose scales the instruction reads for a format; None where there is none."""
    if fmt is None or fmt.element != E2M1 or fmt.block is None:
        return None
    kinds = {(E4M3, 16): torch.float8_e4m3fn, (E8M0, 32): torch.uint8}
    return kinds.get((fmt.scale or E2M1, fmt.block[1]))


def tiled_scales(factor: Factor) -> Tensor:
    """Block scales in 128x4 tiles, uint8 `[rows, columns]`, one for each row of the factor."""
    fmt = factor.format
    assert fmt is not None
    assert fmt.block is not None
    assert factor.scales is not None
    scales = factor.scales.repeat_interleave(fmt.block[0], 0)[: factor.values.shape[0]]
    return swizzle_128x4(scales)


def descriptors(factor: Factor, rows: int, depth: int) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Codes and scales as the kernel reads them."""
    fmt = factor.format
    assert fmt is not None
    assert fmt.block is not None
    tiled = tiled_scales(factor)
    groups = depth // (fmt.block[1] * 4)
    dtype = _scale_dtype(fmt)
    assert dtype is not None
    # a tile of 512 bytes is read as 2 x 256, for a descriptor's sides end at 256
    tiles = tiled.view(dtype).view(1, tiled.shape[0] // 128, tiled.shape[1] // 4, 2, 256)
    return (
        TensorDescriptor.from_tensor(factor.values.contiguous(), [rows, depth // 2]),
        TensorDescriptor.from_tensor(tiles, [1, rows // 128, groups, 2, 256]),
    )


def matmul(a_MK: Factor, b_NK: Factor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`a @ b^T * alpha` of packed codes, rounded once to `dtype` (float32, bf16 or fp16)."""
    M, N, K = a_MK.values.shape[0], b_NK.values.shape[0], a_MK.num_columns
    assert a_MK.format is not None
    assert a_MK.format.block is not None
    out = torch.empty((M, N), dtype=dtype, device=a_MK.values.device)
    rows, columns, depth = 128, 128, 256
    a_epilogue, b_epilogue = tensors_of(a_MK)[2], tensors_of(b_NK)[2]
    launch(
        scaled_kernel,
        triton.cdiv(M, rows) * triton.cdiv(N, columns),
        (
            *descriptors(a_MK, rows, depth),
            a_epilogue,
            *descriptors(b_NK, columns, depth),
            b_epilogue,
            as_integers(out),
            M,
            N,
            K,
        ),
        warps=8,
        device=out.device,
        factor=float32(alpha_divisor(a_MK.format, b_NK.format)),
        a_by_row=a_MK.epilogue.numel() > 1,
        b_by_row=b_NK.epilogue.numel() > 1,
        out_dtype=DTYPES[dtype],
        GROUP=a_MK.format.block[1],
        ROWS=rows,
        COLUMNS=columns,
        DEPTH=depth,
    )
    return out


def library_takes(a: Factor, b: Factor, device: torch.device) -> bool:
    """Whether `library_matmul` computes it: what `matmul` takes with E4M3 scales, on a GPU.

    Where torch has the function; cuBLAS wants multiples of 16 rows.
    """
    return (
        hasattr(torch.nn.functional, "scaled_mm")
        and device.type == "cuda"
        and takes(a, b, device)
        and _scale_dtype(a.format) == torch.float8_e4m3fn
        and all(side.values.shape[0] % 16 == 0 for side in (a, b))
    )


def library_matmul(a_MK: Factor, b_NK: Factor) -> Tensor:
    """`a @ b^T * alpha` by torch's NVFP4 product, float32.

    torch is given block scales only: multiplying by two decode scales of tensors, as it offers,
    would round twice where alpha rounds once.
    """
    from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

    sides = [side.values.view(torch.float4_e2m1fn_x2) for side in (a_MK, b_NK)]
    scales = [tiled_scales(side).view(torch.float8_e4m3fn).flatten() for side in (a_MK, b_NK)]
    product = scaled_mm(
        sides[0],
        sides[1].t(),
        scales[0],
        ScalingType.BlockWise1x16,
        scales[1],
        ScalingType.BlockWise1x16,
        SwizzleType.SWIZZLE_32_4_4,
        SwizzleType.SWIZZLE_32_4_4,
        output_dtype=torch.float32,
    )
    alpha = epilogue_alpha(a_MK.epilogue, b_NK.epilogue, a_MK.format, b_NK.format)
    return product if alpha is None else product * alpha
