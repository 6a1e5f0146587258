"""Products with packed weights, against float64 sums of what the codes stand for.

A float32 sum of K products has an error of at most K 2^-24 sum |x w| (each product and addition
rounds once, by 2^-24 of at most that); the bound below adds the roundings of scale and alpha.
"""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

import fp4lab
from fp4lab import formats as f
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat
from fp4lab.kernels import backends
from fp4lab.kernels.matmul.reference import int8_activations
from fp4lab.kernels.native.library import instruction_sets

NAMES = [*(f"native-{name}" for name in instruction_sets()), "torch", "reference"]
FORMATS = [
    f.NVFP4,
    f.NVFP4_16X16,
    f.NVFP4_ROWWISE,
    f.NVFP4_MODELOPT,
    f.NVFP4_COMPRESSED_TENSORS,
    f.NVFP4_COMPRESSED_TENSORS.replace(name="encode_rows", level=f.Level.ROW),
    f.NVFP4_ONE_LEVEL,
    f.MXFP4,
    f.MXFP8_E4M3,
    f.FP8_ROW_E4M3,
    f.FP8_128X128_E5M2,
    f.NVFP4.replace(name="ue5m3", scale=f.UE5M3),
    f.NVFP4.replace(name="int4", element=f.INT4),
]


def check(
    x: torch.Tensor,
    weight: fp4lab.QuantizedTensor,
    activations: str,
    w64: torch.Tensor | None = None,
) -> None:
    """Every backend's product, where no sum of magnitudes nears the end of float32.

    The last term: products may be subnormal, which rounds each by 2^-150, and each sum.
    """
    columns = x.shape[1]
    wide = int8_activations(x) if activations == "int8" else x
    w64, x64 = weight.dequantize(torch.float64) if w64 is None else w64, wide.double()
    exact, size = x64 @ w64.t(), x64.abs() @ w64.abs().t()
    bound = size * (columns + 4) * 2.0**-24 + 2 * columns * 2.0**-150
    fits = size < 2.0**127
    for name in NAMES:
        with backends.backend(name):
            found = fp4lab.packed_linear(
                x,
                weight,
                activations=activations,
                dtype=torch.float32,  # type: ignore[arg-type]
            )
        assert ((found.double() - exact).abs() <= bound)[fits].all(), name
        assert found[size.isnan()].isnan().all(), name


def packed(rows: int, columns: int, fmt: BlockFormat) -> fp4lab.QuantizedTensor:
    return fp4lab.quantize(torch.randn(rows, columns), fmt, ragged="pad")


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_a_few_rows_times_packed_weights(fmt: BlockFormat) -> None:
    for columns, batch in ((32, 1), (96, 3), (256, 4), (544, 5), (40, 2)):
        weight = packed(33, columns, fmt)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            check(torch.randn(batch, columns).to(dtype), weight, "same")
        check(torch.randn(batch, columns).bfloat16(), weight, "int8")


@pytest.mark.parametrize("activations", ["same", "int8"])
@pytest.mark.parametrize("fmt", [f.NVFP4, f.MXFP4], ids=lambda fmt: fmt.name)
def test_any_number_of_rows_on_both_sides(fmt: BlockFormat, activations: str) -> None:
    """Rows of weights are read in four places at a time, and for up to four rows of x."""
    for rows, batch in itertools.product((1, 2, 3, 4, 5, 7, 10), (1, 2, 3, 4, 5, 9)):
        check(torch.randn(batch, 288).bfloat16(), packed(rows, 288, fmt), activations)
    for columns in (32, 64, 224, 256, 480, 512, 1024):
        check(torch.randn(1, columns).bfloat16(), packed(6, columns, fmt), activations)


@pytest.mark.parametrize("activations", ["same", "int8"])
def test_every_scale_code(activations: str) -> None:
    """Those of negative E4M3 numbers too, which only files of other tools hold."""
    codes = (torch.arange(256)[:, None] + torch.arange(16)).to(torch.uint8)
    exponents = torch.where(codes == 255, torch.nan, codes.double() - 127)
    for fmt, scales in (
        (f.NVFP4_ONE_LEVEL, codes.view(torch.float8_e4m3fn).double()),
        (f.MXFP4, 2.0**exponents),
    ):
        assert fmt.block is not None
        side = fmt.block[1]
        ones = fp4lab.quantize(torch.randn(256, 16 * side), fmt)
        elements = dataclasses.replace(
            ones, scales=torch.full_like(codes, 0x38 if side == 16 else 127)
        )
        w64 = elements.dequantize(torch.float64) * scales.repeat_interleave(side, dim=1)
        weight = dataclasses.replace(ones, scales=codes)
        check(torch.randn(1, 16 * side).bfloat16(), weight, activations, w64)


@pytest.mark.parametrize("activations", ["same", "int8"])
def test_activations_and_scales_of_any_size(activations: str) -> None:
    """Products that would overflow or vanish before the scale that brings them back."""
    numbers = [2.0**n for n in (-133, -126, -125, -119, -118, 119, 121, 122, 126)] + [
        1.9 * 2.0**122
    ]
    for number, code, scale in itertools.product(
        numbers, (0x11, 0x22, 0x66, 0x77), (0, 1, 9, 127, 227, 252)
    ):
        weight = fp4lab.quantize(torch.ones(2, 64), f.MXFP4)
        weight.codes.fill_(code)
        weight.scales.fill_(scale)
        x = torch.zeros(4, 64)
        x[0, 5], x[1], x[2, 1] = number, -number, 1.0
        # what cancels to the last bit of a bf16 number
        x[3, 0], x[3, 1] = number * (1 + 2.0**-7), -number
        check(x.bfloat16(), weight, activations)


def test_many_rows_decode_the_weights() -> None:
    check(torch.randn(40, 96).bfloat16(), packed(24, 96, f.NVFP4), "same")
    check(torch.randn(40, 96), packed(24, 96, f.NVFP4), "int8")


def test_int8_activations_are_the_nearest_of_their_grid() -> None:
    x = torch.randn(7, 50)
    x[0], x[1, :16] = 0.0, torch.linspace(-1, 1, 16)
    found = int8_activations(x)
    for start in range(0, 50, 16):
        block, q = x[:, start : start + 16].double(), found[:, start : start + 16].double()
        step = block.abs().amax(dim=1, keepdim=True) / 127
        assert ((q - block).abs() <= step * (0.5 + 2.0**-15)).all()
        assert (q.abs() <= 127 * step * (1 + 2.0**-22)).all()
    assert not found[0].any()


def test_a_nan_scale_makes_its_row_nan() -> None:
    w = torch.randn(8, 64)
    w[3, 5] = torch.nan
    weight = fp4lab.quantize(w, f.NVFP4_ONE_LEVEL)
    for name, activations in itertools.product(NAMES, ("same", "int8")):
        with backends.backend(name):
            y = fp4lab.packed_linear(torch.randn(1, 64).bfloat16(), weight, activations=activations)  # type: ignore[arg-type]
        assert y.isnan().nonzero()[:, 1].tolist() == [3], (name, activations)


def test_leading_dimensions_and_bad_input() -> None:
    weight = fp4lab.quantize(torch.randn(6, 32), f.NVFP4)
    assert fp4lab.packed_linear(torch.randn(2, 3, 32).half(), weight).shape == (2, 3, 6)
    assert fp4lab.packed_linear(torch.randn(2, 3, 32).half(), weight).dtype == torch.float16
    assert fp4lab.packed_linear(torch.randn(0, 32), weight).shape == (0, 6)
    for x, how, message in (
        (torch.randn(2, 30), {}, "the 32 columns"),
        (torch.ones(2, 32, dtype=torch.int64), {}, "dtype torch.int64"),
        (torch.randn(2, 32), {"activations": "int4"}, "activations='int4'"),
        (torch.randn(2, 32), {"dtype": torch.int32}, "cannot hold"),
    ):
        with pytest.raises(InputError, match=message):
            fp4lab.packed_linear(x, weight, **how)  # type: ignore[arg-type]
    turned = fp4lab.quantize(torch.randn(32, 32), f.NVFP4, axis=-2)
    with pytest.raises(InputError, match="no matrix with blocks along its columns"):
        fp4lab.packed_linear(torch.randn(2, 32), turned)


@pytest.mark.parametrize("accumulate", ["exact", "fast"])
@pytest.mark.parametrize("counts", [[5, 0, 33, 26], [64, 0, 0, 0], [0, 0, 0, 64], [16, 16, 16, 16]])
def test_groups_are_the_products_of_their_rows(counts: list[int], accumulate: str) -> None:
    """Edge cases B29 and B66: any counts, empty groups too."""
    fmt = f.NVFP4.replace(name="", block=(1, 16))
    a = fp4lab.quantize(torch.randn(64, 48), fmt)
    experts = [fp4lab.quantize(torch.randn(20, 48) * 2.0**n, fmt) for n in range(4)]
    if accumulate == "fast" and not fp4lab.kernels.matmul.dispatch.has_bf16(a.device):
        pytest.skip("this CPU has no bf16 instructions")
    how = {"accumulate": accumulate, "dtype": torch.float32}
    found = fp4lab.grouped_scaled_matmul(a, experts, counts, **how)  # type: ignore[arg-type]
    whole = [fp4lab.scaled_matmul(a, expert, **how) for expert in experts]  # type: ignore[arg-type]
    start = 0
    for expert, count in enumerate(counts):
        part = slice(start, start + count)
        assert torch.equal(found[part], whole[expert][part])
        start += count
    assert found.shape == (64, 20)


def test_groups_that_do_not_fit_are_refused() -> None:
    a = fp4lab.quantize(torch.randn(8, 32), f.MXFP4)
    b = [fp4lab.quantize(torch.randn(4, 32), f.MXFP4) for _ in range(2)]
    for counts, matrices, message in (
        ([4, 3], b, "which together are the rows"),
        ([8], b, "one count for each matrix"),
        ([9, -1], b, r"row_counts\[1\]"),
        ([4, 4], [b[0], fp4lab.quantize(torch.randn(5, 32), f.MXFP4)], "all must be alike"),
        ([4, 4], [b[0], torch.randn(4, 32)], "not a QuantizedTensor"),
    ):
        with pytest.raises(InputError, match=message):
            fp4lab.grouped_scaled_matmul(a, matrices, counts)  # type: ignore[arg-type]
    rows = [fp4lab.quantize(torch.randn(4, 32), f.NVFP4_ROWWISE) for _ in range(2)]
    with pytest.raises(InputError, match="scales per row"):
        fp4lab.grouped_scaled_matmul(fp4lab.quantize(torch.randn(8, 32), f.NVFP4), rows, [4, 4])


def test_activations_that_are_not_finite_make_their_block_nan() -> None:
    weight = fp4lab.quantize(torch.ones(3, 32), f.MXFP4)
    for value, expected in ((torch.nan, torch.nan), (torch.inf, torch.nan), (1e-39, 16.0)):
        x = torch.zeros(1, 32)
        x[0, 0], x[0, 16:] = value, 1.0
        for name, rows in itertools.product(NAMES, (1, 17)):
            with backends.backend(name):
                y = fp4lab.packed_linear(x.expand(rows, 32), weight, activations="int8")
            right = torch.full((rows, 3), expected)
            assert torch.allclose(y, right, rtol=0, atol=0, equal_nan=True), (value, name, rows)
    empty = fp4lab.packed_linear(torch.zeros(0, 32), weight, activations="int8")
    assert empty.shape == (0, 3)


def test_a_scale_type_that_is_only_nearly_e4m3() -> None:
    scale = f.ElementType("e4m3_all_numbers", 4, 3, 7, f.Specials.NONE)
    fmt = BlockFormat(name="mine", element=f.E2M1, block=(1, 16), scale=scale)
    weight = fp4lab.quantize(torch.full((2, 64), 6 * 480.0), fmt)
    x = torch.ones(1, 64, dtype=torch.bfloat16)
    for name in NAMES:
        with backends.backend(name):
            y = fp4lab.packed_linear(x, weight, dtype=torch.float32)
        assert torch.equal(y, torch.full((1, 2), 64 * 6 * 480.0)), name


def test_the_default_dtype_does_not_matter() -> None:
    w, x = torch.randn(4, 32), torch.ones(1, 32)
    q = fp4lab.quantize(w, f.MXFP4)
    y, values = fp4lab.packed_linear(x, q), q.dequantize()
    torch.set_default_dtype(torch.float64)
    try:
        wide = fp4lab.quantize(w, f.MXFP8_E4M3).dequantize()
        assert torch.equal(fp4lab.packed_linear(x, q), y)
        assert torch.equal(q.dequantize(), values)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(fp4lab.quantize(w, f.MXFP8_E4M3).dequantize(), wide)


def test_tensors_on_other_devices_and_other_kinds_are_refused() -> None:
    weight = fp4lab.quantize(torch.randn(8, 64), f.NVFP4)
    with pytest.raises(InputError, match="x is on meta"):
        fp4lab.packed_linear(torch.randn(2, 64, device="meta"), weight)
    with pytest.raises(InputError, match="noise is on meta"):
        fp4lab.fake_quantize(
            torch.randn(2, 64),
            f.NVFP4,
            rounding=f.Rounding.STOCHASTIC_8,
            noise=fp4lab.noise_state(1).to("meta"),
        )
    with pytest.raises(InputError, match="not a dense tensor"):
        fp4lab.quantize(torch.randn(16, 16).to_sparse(), f.NVFP4)
    for b, counts in ((weight, [8]), ([weight], None)):
        with pytest.raises(InputError, match="give a list"):
            fp4lab.grouped_scaled_matmul(weight, b, counts)  # type: ignore[arg-type]
