# mypy: disable-error-code="untyped-decorator"
"""The chip's own conversion to E2M1: sm_100 and sm_120 to nearest, sm_100 alone stochastically.

The instructions differ from fp4lab's rules for NaN, which they make the largest number and fp4lab
code 0; signs of zeros, saturation and ties to even are the same. Stochastic rounding adds the
same 8 bits an element, but which byte of the word goes to which element is the chip's affair: its
codes have the same distribution as the portable ones and need not be equal to them, so nothing
chooses it unasked.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fp4lab.kernels.minifloat.triton import INFINITY, MAGNITUDE


@triton.jit
def nearest_pairs(v: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """Packed codes, uint8 `[ROWS, COLUMNS / 2]`, of scaled elements `[ROWS, COLUMNS]`."""
    number = (v.to(tl.int32, bitcast=True) & MAGNITUDE) <= INFINITY
    low, high = tl.split(tl.reshape(tl.where(number, v, 0.0), (ROWS, COLUMNS // 2, 2)))
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b8 b0, b1, b2, b3;
        cvt.rn.satfinite.e2m1x2.f32 b0, $5, $1;
        cvt.rn.satfinite.e2m1x2.f32 b1, $6, $2;
        cvt.rn.satfinite.e2m1x2.f32 b2, $7, $3;
        cvt.rn.satfinite.e2m1x2.f32 b3, $8, $4;
        mov.b32 $0, {b0, b1, b2, b3};
        }
        """,
        "=r,f,f,f,f,f,f,f,f",
        [low, high],
        dtype=tl.uint8,
        is_pure=True,
        pack=4,
    )


@triton.jit
def stochastic_quads(
    v: tl.tensor, random: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr
) -> tl.tensor:
    """The same with noise: bytes `[ROWS, COLUMNS]` become one word for each four elements."""
    number = (v.to(tl.int32, bitcast=True) & MAGNITUDE) <= INFINITY
    quads = tl.reshape(tl.where(number, v, 0.0), (ROWS, COLUMNS // 4, 2, 2))
    even, odd = tl.split(quads)
    v0, v2 = tl.split(even)
    v1, v3 = tl.split(odd)
    shift = (tl.arange(0, 4) * 8).to(tl.uint32)[None, None, :]
    word = tl.sum(tl.reshape(random, (ROWS, COLUMNS // 4, 4)) << shift, axis=2)
    codes = tl.inline_asm_elementwise(
        "cvt.rs.satfinite.e2m1x4.f32 $0, {$4, $3, $2, $1}, $5;",
        "=h,f,f,f,f,r",
        [v0, v1, v2, v3, word],
        dtype=tl.uint16,
        is_pure=True,
        pack=1,
    )
    pairs = tl.join(codes & 0xFF, codes >> 8)
    return tl.reshape(pairs, (ROWS, COLUMNS // 2)).to(tl.uint8)
