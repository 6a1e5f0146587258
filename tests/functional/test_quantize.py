"""quantize and fake_quantize: dtypes, leading dimensions, layouts, axes, amax, gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4lab
from fp4lab import formats as f
from fp4lab.formats import BlockFormat
from tests.kernels.inputs import same

FORMATS = [f.get(name) for name in f.names()]
SOME = [f.NVFP4, f.NVFP4_16X16, f.NVFP4_ROWWISE, f.NVFP4_4OVER6, f.MXFP4, f.MXFP8_E5M2]
SOME += [f.FP8_TENSOR_E4M3, f.FP8_ROW_E4M3, f.FP8_128X128_E4M3, f.BF16, f.FP16]


def name(fmt: BlockFormat) -> str:
    return fmt.name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("fmt", SOME, ids=name)
def test_every_dtype_goes_through_float32(fmt: BlockFormat, dtype: torch.dtype) -> None:
    x = (torch.randn(32, 128, dtype=torch.float64) * 3).to(dtype)
    q = fp4lab.quantize(x, fmt, ragged="pad")
    assert q.equal(fp4lab.quantize(x.to(torch.float32), fmt, ragged="pad"))
    fake = fp4lab.fake_quantize(x, fmt, ragged="pad")
    assert fake.dtype == dtype
    assert torch.equal(fake, q.dequantize(dtype))


@pytest.mark.parametrize("fmt", SOME, ids=name)
def test_leading_dimensions_are_rows(fmt: BlockFormat) -> None:
    x = torch.randn(2, 3, 8, 128)
    q = fp4lab.quantize(x, fmt, ragged="pad")
    flat = fp4lab.quantize(x.reshape(48, 128), fmt, ragged="pad")
    assert q.shape == x.shape
    assert torch.equal(q.dequantize(), flat.dequantize().view(x.shape))
    vector = fp4lab.quantize(x[0, 0, 0], fmt, ragged="pad")
    row = fp4lab.quantize(x[0, 0, :1], fmt, ragged="pad")
    assert torch.equal(vector.dequantize(), row.dequantize()[0])
    along_rows = fp4lab.quantize(x, fmt, axis=-2, ragged="pad")
    turned = fp4lab.quantize(x.reshape(48, 128).t(), fmt, ragged="pad")
    assert torch.equal(along_rows.dequantize(), turned.dequantize().t().reshape(x.shape))


def test_decode_scales_end_at_the_largest_number() -> None:
    """Where the second level aims low, a large amax has an encode scale whose inverse overflows."""
    fmt = f.NVFP4.replace(name="little", scale_cap=1e-4)
    x = torch.tensor([[3e35, *[1.0] * 15]])
    values = fp4lab.fake_quantize(x, fmt)
    same(values, fp4lab.quantize(x, fmt).dequantize())
    assert not values.any()


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_fake_quantization_is_quantization_and_back(fmt: BlockFormat) -> None:
    x = torch.randn(40, 70)
    for axis in (-1, -2):
        q = fp4lab.quantize(x, fmt, axis=axis, ragged="pad")
        same(fp4lab.fake_quantize(x, fmt, axis=axis, ragged="pad"), q.dequantize())


@pytest.mark.parametrize(
    "fmt", [fmt for fmt in FORMATS if f.WHOLE not in (fmt.block or ())], ids=name
)
def test_ragged_edges_are_those_of_the_padded_tensor(fmt: BlockFormat) -> None:
    x = torch.randn(21, 37)
    padded = torch.nn.functional.pad(x, (0, 91, 0, 107))
    q = fp4lab.fake_quantize(padded, fmt)
    assert torch.equal(fp4lab.fake_quantize(x, fmt, ragged="pad"), q[:21, :37])
    assert not q[21:].any()
    assert not q[:, 37:].any()


@pytest.mark.parametrize("fmt", [f.NVFP4, f.NVFP4_16X16, f.NVFP4_4OVER6], ids=name)
def test_a_given_amax_is_used_instead_of_the_tensor_s_own(fmt: BlockFormat) -> None:
    x = torch.randn(32, 64)
    own = x.abs().amax().view(1)
    assert fp4lab.quantize(x, fmt, amax=own).equal(fp4lab.quantize(x, fmt))
    larger = torch.cat((x, torch.full((16, 64), 50.0)))
    part = fp4lab.quantize(x, fmt, amax=torch.tensor([50.0]))
    whole = fp4lab.quantize(larger, fmt)
    assert torch.equal(part.codes, whole.codes[:32])
    assert torch.equal(part.scales, whole.scales[: len(part.scales)])
    assert torch.equal(part.amax, whole.amax)


def test_a_given_amax_per_row() -> None:
    x = torch.randn(4, 64)
    own = x.abs().amax(dim=1)
    assert fp4lab.quantize(x, f.NVFP4_ROWWISE, amax=own).equal(fp4lab.quantize(x, f.NVFP4_ROWWISE))
    columns = x.abs().amax(dim=0)
    q = fp4lab.quantize(x, f.NVFP4_ROWWISE, axis=-2, amax=columns, ragged="pad")
    assert q.equal(fp4lab.quantize(x, f.NVFP4_ROWWISE, axis=-2, ragged="pad"))


@settings(max_examples=40)
@given(
    st.sampled_from(FORMATS),
    st.lists(st.sampled_from([0, 1, 3, 16]), min_size=1, max_size=3),
    st.sampled_from([-1, -2]),
    st.sampled_from(f.Rounding),
)
def test_empty_tensors_stay_empty(
    fmt: BlockFormat, shape: list[int], axis: int, rounding: f.Rounding
) -> None:
    """Also edge case B76: the largest magnitude of nothing is 0."""
    x = torch.randn(*shape, 0)
    how = {"axis": axis, "ragged": "pad", "rounding": rounding, "noise": fp4lab.noise_state(0)}
    for empty in (x, x.transpose(0, -1)):
        q = fp4lab.quantize(empty, fmt, **how)
        assert q.shape == empty.shape
        assert q.dequantize().shape == empty.shape
        assert fp4lab.fake_quantize(empty, fmt, **how).shape == empty.shape
        assert (q.tensor_scale == (1.0 if fmt.direction == f.Direction.ENCODE else 0.0)).all()
        product = fp4lab.scaled_matmul(q, q)
        assert product.shape == (q.matrix_shape[0],) * 2
        assert not product.any()


def test_the_input_is_left_alone() -> None:
    for fmt in FORMATS:
        x = torch.randn(32, 128)
        before = x.clone()
        fp4lab.quantize(x, fmt, ragged="pad")
        fp4lab.fake_quantize(x, fmt, axis=-2, ragged="pad")
        fp4lab.error(x, fmt, ragged="pad")
        assert torch.equal(x, before)


def test_results_do_not_alias_the_input() -> None:
    x = torch.randn(32, 128)
    for fmt in FORMATS:
        fake = fp4lab.fake_quantize(x, fmt, ragged="pad")
        assert fake.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@pytest.mark.parametrize("fmt", SOME, ids=name)
def test_quantization_leaves_no_graph(fmt: BlockFormat) -> None:
    x = torch.randn(16, 128, requires_grad=True)
    q = fp4lab.quantize(x, fmt, ragged="pad")
    assert not any(part.requires_grad for part in q.parts())
    assert fp4lab.fake_quantize(x, fmt, ragged="pad").requires_grad


@pytest.mark.parametrize("fmt", [f.NVFP4, f.MXFP4, f.MXFP8_E4M3, f.FP8_ROW_E4M3], ids=name)
def test_quantizing_twice_changes_nothing_where_scales_are_powers_of_two(fmt: BlockFormat) -> None:
    """Others may move: a new amax of 6 E4M3(s) need not round to the same scale."""
    once = fp4lab.fake_quantize(torch.randn(64, 128), fmt)
    twice = fp4lab.fake_quantize(once, fmt)
    if fmt.scale == f.E8M0:
        assert torch.equal(once, twice)
    else:
        assert (once - twice).norm() <= 0.1 * once.norm()
