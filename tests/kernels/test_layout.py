"""Packing of 4-bit codes, and the 128x4 layout of scales."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4lab
from fp4lab.errors import InputError
from fp4lab.kernels.layout.reference import pack_nibbles, unpack_nibbles


def test_the_low_nibble_is_the_even_column() -> None:
    assert pack_nibbles(torch.tensor([[1, 2, 15, 0, 7]], dtype=torch.uint8)).tolist() == [
        [0x21, 0x0F, 0x07]
    ]


@settings(max_examples=30)
@given(st.integers(0, 5), st.integers(0, 9), st.booleans())
def test_packing_is_undone(rows: int, columns: int, strided: bool) -> None:
    codes = torch.randint(0, 16, (rows, columns), dtype=torch.uint8)
    codes = codes.t().contiguous().t() if strided else codes
    packed = pack_nibbles(codes)
    assert packed.shape == (rows, (columns + 1) // 2)
    assert torch.equal(unpack_nibbles(packed, columns), codes)


def test_every_scale_goes_to_its_byte() -> None:
    """Row r, column c: tile (r // 128, c // 4), byte (r % 32) 16 + (r % 128 // 32) 4 + c % 4."""
    rows, columns = 300, 11
    scales = torch.randint(0, 256, (rows, columns), dtype=torch.uint8)
    swizzled = fp4lab.swizzle_128x4(scales)
    assert swizzled.shape == (384, 12)
    memory = swizzled.flatten().tolist()
    found = [[0] * columns for _ in range(rows)]
    for r in range(rows):
        for c in range(columns):
            tile = (r // 128) * 3 + c // 4
            found[r][c] = memory[tile * 512 + (r % 32) * 16 + (r % 128 // 32) * 4 + c % 4]
    assert found == scales.tolist()
    assert sum(memory) == scales.sum()


@settings(max_examples=30)
@given(st.integers(0, 260), st.integers(0, 9), st.sampled_from([torch.uint8, torch.float8_e4m3fn]))
def test_the_swizzle_is_undone(rows: int, columns: int, dtype: torch.dtype) -> None:
    scales = torch.randint(0, 120, (rows, columns), dtype=torch.uint8)
    back = fp4lab.unswizzle_128x4(fp4lab.swizzle_128x4(scales.view(dtype)), rows, columns)
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), scales)


def test_wrong_scales_are_refused() -> None:
    with pytest.raises(InputError, match=r"scales of shape \(2, 4\) and dtype torch.float32"):
        fp4lab.swizzle_128x4(torch.zeros(2, 4))
    with pytest.raises(InputError, match=r"shape \(4,\)"):
        fp4lab.swizzle_128x4(torch.zeros(4, dtype=torch.uint8))
    with pytest.raises(InputError, match=r"shape \(4,\)"):
        fp4lab.unswizzle_128x4(torch.zeros(4, dtype=torch.uint8), 1, 1)
    with pytest.raises(InputError, match="do not hold 129 x 4"):
        fp4lab.unswizzle_128x4(torch.zeros(128, 4, dtype=torch.uint8), 129, 4)
    with pytest.raises(InputError, match=r"shape \(64, 4\)"):
        fp4lab.unswizzle_128x4(torch.zeros(64, 4, dtype=torch.uint8), 64, 4)
