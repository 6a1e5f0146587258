"""Products of quantized operands: every pair of formats, tensor scales in the epilogue."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fp4lab
from fp4lab import formats as f
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat
from fp4lab.kernels import ops

FORMATS = [
    f.NVFP4,
    f.NVFP4_16X16,
    f.NVFP4_ROWWISE,
    f.NVFP4_ONE_LEVEL,
    f.NVFP4.replace(element=f.INT4),
    f.NVFP4.replace(block=(1, f.WHOLE)),
    f.NVFP4_COMPRESSED_TENSORS,
    f.NVFP4_COMPRESSED_TENSORS.replace(name="encode_rows", level=f.Level.ROW),
    f.NVFP4_MODELOPT,
    f.MXFP4,
    f.MXFP8_E4M3,
    f.FP8_TENSOR_E4M3,
    f.FP8_ROW_E5M2,
    f.FP8_1X128_E4M3,
    f.FP8_128X128_E4M3,
    f.BF16,
    f.FP16,
]
M, N, K = 13, 17, 128


def name(fmt: BlockFormat) -> str:
    return f"{fmt.name}-{fmt.element.name}-{fmt.block}"


def quantized(x: Tensor, fmt: BlockFormat) -> fp4lab.QuantizedTensor:
    return fp4lab.quantize(x, fmt, ragged="pad")


def operand(q: fp4lab.QuantizedTensor) -> Tensor:
    how = (q.format.definition, q.matrix_shape[1], torch.float32)
    values: Tensor = ops.stored_operand(*q.parts(), *how)[0]
    return values


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_the_product_is_that_of_the_dequantized_operands(fmt: BlockFormat) -> None:
    """In float64, within K + 4 roundings of float32 for each of the K products."""
    x, w = torch.randn(M, K), torch.randn(N, K) * 3
    for other in FORMATS:
        a, b = quantized(x, fmt), quantized(w, other)
        exact = a.dequantize(torch.float64) @ b.dequantize(torch.float64).t()
        size = a.dequantize(torch.float64).abs() @ b.dequantize(torch.float64).abs().t()
        product = fp4lab.scaled_matmul(a, b)
        assert product.dtype == torch.float32
        assert ((product - exact).abs() <= (K + 4) * 2.0**-24 * size).all(), name(other)


def test_the_tensor_scales_multiply_the_sum_once() -> None:
    """E2M1 x E4M3 products are multiples of 2^-20: with few of them the float32 sum is exact."""
    x, w = torch.randn(M, 32), torch.randn(N, 32)
    a, b = quantized(x, f.NVFP4), quantized(w, f.NVFP4_16X16)
    operands = [operand(q) for q in (a, b)]
    exact = operands[0].double() @ operands[1].double().t()
    assert torch.equal(exact.float().double(), exact)
    alpha = (a.amax * b.amax) / torch.tensor(36.0 * 448 * 448)
    assert torch.equal(fp4lab.scaled_matmul(a, b), exact.float() * alpha)


def test_encode_and_decode_scales_take_the_place_of_amax() -> None:
    """alpha = (1 / S) D, or amax D / (C M), rounded in this order; the sums are exact."""
    x, w = torch.randn(M, 32), torch.randn(N, 32)
    encode, decode, amax = (
        quantized(x, f.NVFP4_COMPRESSED_TENSORS),
        quantized(w, f.NVFP4_MODELOPT),
        quantized(w, f.NVFP4),
    )
    S, D, A = (q.tensor_scale for q in (encode, decode, amax))
    for a, b, alpha in (
        (encode, decode, (1 / S) * D),
        (encode, encode, (1 / S) * (1 / S)),
        (decode, decode, D * D),
        (amax, decode, (A * D) / torch.tensor(6.0 * 448)),
    ):
        exact = (operand(a).double() @ operand(b).double().t()).float()
        assert torch.equal(fp4lab.scaled_matmul(a, b), exact * alpha)
        grouped = fp4lab.grouped_scaled_matmul(a, [b, b], [4, a.shape[0] - 4])
        assert torch.equal(grouped, exact * alpha)


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_operands_fit_bf16_where_the_format_says_so(fmt: BlockFormat) -> None:
    q = quantized(torch.randn(32, 256) * 2.0 ** torch.randint(-9, 9, (32, 256)), fmt)
    values, _ = ops.stored_operand(*q.parts(), fmt.definition, 256, torch.float32)
    fits = torch.equal(values.to(torch.bfloat16).to(torch.float32), values)
    assert fits or not fmt.operand_fits_bf16
    assert fmt.operand_fits_bf16 == (fmt.name not in ("fp8_1x128_e4m3", "fp8_128x128_e4m3", "fp16"))


def test_the_operand_and_its_epilogue_stand_for_the_dequantized_values() -> None:
    for fmt in FORMATS:
        q = quantized(torch.randn(32, 256), fmt)
        values, epilogue = ops.stored_operand(*q.parts(), fmt.definition, 256, torch.float32)
        whole = values.double()
        if epilogue.numel():
            whole = whole * epilogue.double() / (fmt.epilogue_ratio[0] / fmt.epilogue_ratio[1])
        error = (whole - q.dequantize(torch.float64)).abs()
        # three float32 roundings on the way to the dequantized value
        assert (error <= 3 * 2.0**-24 * whole.abs()).all(), name(fmt)


@pytest.mark.parametrize(("axis_a", "axis_b"), [(-1, -1), (-1, -2), (-2, -1), (-2, -2)])
def test_either_operand_may_be_contracted_along_its_rows(axis_a: int, axis_b: int) -> None:
    x, w = torch.randn(M, K), torch.randn(N, K)
    a, b = quantized(x, f.MXFP4), quantized(w, f.MXFP4)
    turned = [t if axis == -1 else t.t().contiguous() for t, axis in ((x, axis_a), (w, axis_b))]
    product = fp4lab.scaled_matmul(
        fp4lab.quantize(turned[0], f.MXFP4, axis=axis_a),
        fp4lab.quantize(turned[1], f.MXFP4, axis=axis_b),
    )
    assert torch.equal(product, fp4lab.scaled_matmul(a, b))


def test_the_second_level_per_row_of_either_operand_reaches_its_row() -> None:
    """Powers of two on the rows of x and w come out on the rows and columns, exactly."""
    x, w = torch.randn(M, K), torch.randn(N, K)
    rows, columns = 2.0 ** torch.arange(M).view(-1, 1), 2.0 ** -torch.arange(N).view(-1, 1)
    base = fp4lab.scaled_matmul(quantized(x, f.NVFP4_ROWWISE), quantized(w, f.NVFP4_ROWWISE))
    product = fp4lab.scaled_matmul(
        quantized(x * rows, f.NVFP4_ROWWISE), quantized(w * columns, f.NVFP4_ROWWISE)
    )
    assert torch.equal(product, base * rows * columns.t())


def test_padding_contributes_nothing() -> None:
    x, w = torch.randn(5, 37), torch.randn(7, 37)
    wide = [torch.nn.functional.pad(t, (0, 11)) for t in (x, w)]
    for fmt in (f.NVFP4, f.MXFP4.replace(block=(1, 16))):
        product = fp4lab.scaled_matmul(quantized(x, fmt), quantized(w, fmt))
        padded = fp4lab.scaled_matmul(*(fp4lab.quantize(t, fmt) for t in wide))
        assert torch.equal(product, padded)


def test_the_sqnr_of_an_nvfp4_product_of_gaussians() -> None:
    """Edge case B17: against float64 of the unquantized operands, not against itself.

    Two operands of 20.44 dB each give a product of 17.4 dB; the bound leaves 5 deviations of a mean
    over M N = 4096 errors, each with a relative deviation of sqrt(2).
    """
    x, w = torch.randn(64, 512), torch.randn(64, 512)
    exact = x.double() @ w.double().t()
    product = fp4lab.scaled_matmul(quantized(x, f.NVFP4), quantized(w, f.NVFP4))
    ratio = ((product - exact).square().mean() / exact.square().mean()).item()
    expected = 2 * 0.00904
    assert abs(ratio - expected) < 5 * (2 * 2**0.5 / 64) * expected


def test_fast_products_round_to_bf16_once() -> None:
    a, b = quantized(torch.randn(M, K), f.NVFP4), quantized(torch.randn(N, K), f.NVFP4)
    wide = quantized(torch.randn(N, K), f.FP8_1X128_E4M3)
    with pytest.raises(InputError, match="'fp8_1x128_e4m3'"):
        fp4lab.scaled_matmul(a, wide, accumulate="fast")
    if not torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported():
        with pytest.raises(InputError, match="AVX512-BF16"):
            fp4lab.scaled_matmul(a, b, accumulate="fast")
        return
    fast = fp4lab.scaled_matmul(a, b, accumulate="fast")
    operands = [operand(q) for q in (a, b)]
    alpha = a.amax.double() * b.amax.double() / (36.0 * 448 * 448)
    exact = operands[0].double() @ operands[1].double().t() * alpha
    size = operands[0].double().abs() @ operands[1].double().abs().t() * alpha
    # half an ulp of bf16, and K + 4 float32 roundings for the rest
    assert ((fast - exact).abs() <= exact.abs() * 2.0**-8 + size * (K + 4) * 2.0**-24).all()


@pytest.mark.parametrize("counts", [[1, 1], [3, 3], [-1, 5], [4], [2, 1, 1]])
def test_counts_that_are_not_the_rows_are_refused(counts: list[int]) -> None:
    a, b = torch.ones(4, 32), torch.ones(2, 3, 32)
    with pytest.raises(InputError, match="which together are the rows"):
        ops.grouped_matmul(a, b, None, torch.tensor(counts), torch.float32)


def test_operands_of_other_lengths_are_refused() -> None:
    a, b = quantized(torch.randn(4, 32), f.MXFP4), quantized(torch.randn(4, 64), f.MXFP4)
    with pytest.raises(InputError, match="a contracts 32 values and b 64"):
        fp4lab.scaled_matmul(a, b)


@pytest.mark.parametrize(
    ("rows", "columns", "inner"), [(512, 256, 64), (64, 300, 1000), (3, 5, 64)]
)
def test_a_bf16_product_is_the_float32_sum_rounded_once(
    rows: int, columns: int, inner: int
) -> None:
    """Sums of NVFP4 elements are exact in float32: times alpha and rounded, bits are equal."""
    values = torch.tensor(f.E2M1.values())
    a, b = (values[torch.randint(0, 16, (side, inner))] for side in (rows, columns))
    sums = a.double() @ b.double().t()
    for alpha in (torch.tensor([1 / 3]), torch.tensor([3.3e-5]), torch.rand(rows, 1), None):
        expected = sums.float() if alpha is None else sums.float() * alpha
        found = ops.matmul(a.bfloat16(), b.bfloat16(), alpha, torch.bfloat16)
        assert torch.equal(found, expected.bfloat16())
        assert torch.equal(ops.matmul(a, b, alpha, torch.float32), expected)
