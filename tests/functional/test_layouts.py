"""Any strides, views, and sizes beyond 32 bits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fp4lab
from fp4lab import formats as f
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat

FORMATS = [f.NVFP4, f.NVFP4_16X16, f.NVFP4_ROWWISE, f.MXFP4, f.MXFP8_E4M3, f.FP8_TENSOR_E4M3]
FORMATS += [f.FP8_ROW_E4M3, f.FP8_1X128_E4M3, f.BF16]


def stepped(x: Tensor) -> Tensor:
    return torch.stack((x, torch.full_like(x, torch.nan)), dim=-1).flatten(-2)[..., ::2]


def shifted(x: Tensor) -> Tensor:
    store = torch.full((x.numel() + 1,), torch.nan)
    return store[1:].view(x.shape).copy_(x)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every second column": stepped,
    "every second row": lambda x: stepped(x.t()).t(),
    "storage offset": shifted,
    "channels last": lambda x: (
        x.view(8, 4, 4, 64).permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1).reshape(128, 64)
    ),
    "reversed twice": lambda x: x.flip(0).flip(0),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_strided_tensors_are_quantized_as_contiguous_ones(fmt: BlockFormat, layout: str) -> None:
    """Edge case B31: and the results are contiguous whatever came in."""
    x = torch.randn(128, 64)
    view = LAYOUTS[layout](x)
    assert torch.equal(view, x)
    for axis in (-1, -2):
        q = fp4lab.quantize(view, fmt, axis=axis, ragged="pad")
        assert q.equal(fp4lab.quantize(x, fmt, axis=axis, ragged="pad"))
        assert all(part.is_contiguous() for part in q.parts())
        fake = fp4lab.fake_quantize(view, fmt, axis=axis, ragged="pad")
        assert torch.equal(fake, q.dequantize())


def test_expanded_rows_are_quantized_as_copies() -> None:
    """Edge case B31: strides of 0."""
    row = torch.randn(1, 64)
    for fmt in FORMATS:
        expanded = fp4lab.quantize(row.expand(32, 64), fmt, ragged="pad")
        assert expanded.equal(fp4lab.quantize(row.repeat(32, 1), fmt, ragged="pad"))


def test_lazily_negated_views_are_quantized_as_their_values() -> None:
    """Edge case B31: the imaginary part of a conjugate only says that it is negative."""
    x = torch.view_as_complex(torch.randn(16, 32, 2)).conj().imag
    assert x.is_neg()
    for fmt in FORMATS:
        q = fp4lab.quantize(x, fmt, ragged="pad")
        assert q.equal(fp4lab.quantize(x.resolve_neg().contiguous(), fmt, ragged="pad"))


def test_offsets_beyond_32_bits() -> None:
    """Edge case B33: rows 2^31 elements apart are read where they are, in 64-bit arithmetic."""
    stride = (1 << 31) + 16
    x = torch.randn(2, 32)
    with tempfile.NamedTemporaryFile() as file:
        # a file of holes: 8 GiB that take no memory
        file.truncate(4 * (stride + 32))
        store = torch.from_file(file.name, shared=True, size=stride + 32)
        view = store.as_strided((2, 32), (stride, 1))
        view.copy_(x)
        for fmt in (f.NVFP4, f.MXFP4, f.FP8_ROW_E4M3):
            for axis in (-1, -2):
                q = fp4lab.quantize(view, fmt, axis=axis, ragged="pad")
                assert q.equal(fp4lab.quantize(x, fmt, axis=axis, ragged="pad"))


def test_noise_of_rows_and_columns_beyond_32_bits() -> None:
    """Edge case B33: columns count up to 2^34, rows up to 2^32; what lies beyond is refused."""
    x, last = torch.randn(2, 32), (1 << 34) - 32
    how = {"rounding": f.Rounding.STOCHASTIC_8, "noise": fp4lab.noise_state(0)}
    places = [(rows, offset) for rows in (0, (1 << 32) - 2) for offset in (0, 1 << 33, last)]
    found = []
    for rows, offset in places:
        at = {"row_ids": torch.arange(2) + rows, "column_offset": offset, **how}
        found.append(fp4lab.quantize(x, f.MXFP4, **at).codes)
        with fp4lab.backend("reference"):
            assert torch.equal(found[-1], fp4lab.quantize(x, f.MXFP4, **at).codes)
    assert len({bytes(codes.numpy()) for codes in found}) == len(places)
    with pytest.raises(InputError, match="column_offset"):
        fp4lab.quantize(x, f.MXFP4, column_offset=last + 1, **how)
    with pytest.raises(InputError, match="row_ids from 4294967295 to 4294967296"):
        fp4lab.quantize(x, f.MXFP4, row_ids=torch.arange(2) + (1 << 32) - 1, **how)


def test_shapes_beyond_32_bits_on_the_meta_device() -> None:
    x = torch.empty(1 << 17, 1 << 16, device="meta")
    q = fp4lab.quantize(x, f.NVFP4)
    assert q.codes.shape == (1 << 17, 1 << 15)
    assert q.scales.shape == (1 << 17, 1 << 12)
    assert q.nbytes == (1 << 32) + (1 << 29) + 4
    assert fp4lab.fake_quantize(x, f.MXFP4, axis=-2).shape == x.shape
    assert q.dequantize().shape == x.shape


def test_a_dimension_that_does_not_fit_is_refused_or_padded() -> None:
    """Edge case B28: the message names the size, the block and the policy; padding adds nothing."""
    for columns in (17, 30, 8, 1):
        x = torch.randn(5, columns)
        with pytest.raises(fp4lab.InputError, match=f"{columns} values along .* 16 .*'pad'"):
            fp4lab.quantize(x, f.NVFP4)
        q = fp4lab.quantize(x, f.NVFP4, ragged="pad")
        assert q.shape == x.shape
        w = fp4lab.quantize(torch.randn(3, columns), f.NVFP4, ragged="pad")
        exact = q.dequantize(torch.float64) @ w.dequantize(torch.float64).t()
        size = q.dequantize().abs() @ w.dequantize().abs().t()
        product = fp4lab.scaled_matmul(q, w)
        assert ((product - exact).abs() <= (columns + 4) * 2.0**-24 * size).all()
    assert fp4lab.quantize(torch.randn(5, 0), f.NVFP4).dequantize().shape == (5, 0)
