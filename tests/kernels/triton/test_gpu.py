"""What only a GPU can show: large tensors, the chip's own instructions, work on another stream.

The other tests of this folder run on a GPU too, when there is one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import fp4lab
from fp4lab import formats
from fp4lab.kernels import backends, ops
from fp4lab.kernels.matmul.reference import epilogue_alpha
from tests.kernels.triton.operators import (
    SIGNED,
    Factor,
    Noise,
    Quantization,
    matmul,
    noise,
    quantize,
    reference,
    same_bits,
    triton_grouped,
    triton_pair,
    triton_scaled,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def full_float32_products() -> Iterator[None]:
    """The expected products are float32's, not TF32's."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def large(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Ties are frequent among bf16's numbers."""
    generator = torch.Generator("cuda").manual_seed(0)
    x_MK = torch.randn(4096, 2048, device="cuda", generator=generator)
    return x_MK.to(torch.bfloat16).to(dtype)


def capability() -> int:
    return torch.cuda.get_device_capability()[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("bits", [0, 8, 32])
@pytest.mark.parametrize("transposed", [False, True])
def test_large_matrices(transposed: bool, bits: int, dtype: torch.dtype) -> None:
    """Against the reference on the same GPU: thousands of programs, with their own amax."""
    cuda_noise = None
    if (drawn := noise(bits)) is not None:
        cuda_noise = drawn._replace(state=drawn.state.cuda())
    transform = SIGNED if transposed else None
    asked = Quantization(large(dtype), formats.NVFP4, transposed, transform, cuda_noise)
    encoded = reference.encoded(asked)
    stored = reference.codes_and_scales(encoded, asked.format, asked.shape)
    assert all(map(same_bits, quantize.codes_and_scales(asked), stored))
    expected = reference.operand(encoded, asked.format, asked.shape)
    assert all(map(same_bits, quantize.operand(asked), expected))


def test_both_operands_of_a_large_matrix() -> None:
    x_MK = large()
    straight = Quantization(x_MK, formats.NVFP4)
    drawn = Noise(torch.tensor([1, 2, 3, 4], device="cuda"), 5, 8)
    turned = Quantization(x_MK, formats.NVFP4, True, SIGNED, drawn)
    pairs = triton_pair.operand_pair(straight, turned, torch.bfloat16)
    for results, asked in zip(pairs, (straight, turned), strict=True):
        values, epilogue = quantize.operand(asked)
        assert same_bits(results[0], values.to(torch.bfloat16))
        assert same_bits(results[1], epilogue)


def test_native_conversion_to_nearest() -> None:
    if not quantize.takes_native(Quantization(large(), formats.NVFP4)):
        pytest.skip("needs cvt.rn.satfinite.e2m1x2: sm_100 or sm_120")
    x_MK = large(torch.float32)
    x_MK[0, 0], x_MK[1, 1], x_MK[2, 2], x_MK[3, 3] = torch.nan, torch.inf, -0.0, -1e-30
    for transposed in (False, True):
        asked = Quantization(x_MK, formats.NVFP4_ROWWISE, transposed)
        native = quantize.codes_and_scales(asked, native=True)
        assert all(map(same_bits, native, quantize.codes_and_scales(asked)))


def test_native_stochastic_conversion() -> None:
    """Neighbours of the value, and the upper one as often as the portable kernel takes it."""
    if capability() != 10:
        pytest.skip("needs cvt.rs.satfinite.e2m1x4: sm_100")
    x_MK = torch.full((2048, 2048), 2.25, device="cuda")
    x_MK[:, ::16] = 6.0
    state = torch.tensor([1, 2, 3, 4], device="cuda")
    asked = Quantization(x_MK, formats.NVFP4, noise=Noise(state, 5, 8))
    codes, scales, amax = quantize.codes_and_scales(asked, native=True)
    values = reference.dequantized(
        reference.from_storage(codes, scales, amax, asked.format, 2048), asked.format, (2048, 2048)
    )
    rest = values[x_MK != 6.0]
    assert ((rest == 2.0) | (rest == 3.0)).all()
    # the binomial deviation of n draws at p = 1/4, six times
    deviation = (0.25 * 0.75 / rest.numel()) ** 0.5
    assert abs((rest == 3.0).double().mean().item() - 0.25) < 6 * deviation


def codes_of(x_MK: torch.Tensor, fmt: formats.BlockFormat) -> Factor:
    codes, scales, amax = quantize.codes_and_scales(Quantization(x_MK, fmt))
    return Factor(codes, scales, amax, fmt, x_MK.shape[1])


def expected_product(a: Factor, b: Factor) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64, and the largest error of float32 sums over K in any order."""
    values = []
    for side in (a, b):
        assert side.scales is not None
        assert side.format is not None
        stored = (side.values, side.scales, side.epilogue)
        encoded = reference.from_storage(*stored, side.format, side.num_columns)
        shape = (side.values.shape[0], side.num_columns)
        values.append(reference.operand(encoded, side.format, shape)[0].double())
    alpha = epilogue_alpha(a.epilogue, b.epilogue, a.format, b.format)
    factor = 1.0 if alpha is None else alpha.double()
    terms = values[0].abs() @ values[1].abs().t() * factor
    # one rounding an addition, and those of the last product; truncating adders err twice as much
    bound = terms * (2 * a.num_columns + 4) * 2.0**-24
    return values[0] @ values[1].t() * factor, bound


@pytest.mark.parametrize("fmt", [formats.NVFP4, formats.MXFP4], ids=lambda fmt: fmt.name)
def test_large_products(fmt: formats.BlockFormat) -> None:
    a, b = codes_of(large(), fmt), codes_of(large().flip(0)[:1024], fmt)
    expected, bound = expected_product(a, b)
    products = [matmul.matmul(a, b)]
    if triton_scaled.takes(a, b, "cuda"):
        products.append(triton_scaled.matmul(a, b))
    if triton_scaled.library_takes(a, b, torch.device("cuda")):
        products.append(triton_scaled.library_matmul(a, b))
    for product in products:
        assert ((product.double() - expected).abs() <= bound).all()


def test_products_of_quantized_tensors() -> None:
    """Through the public face: bf16 once, and by the route that this GPU has."""
    matrices = large(), large().flip(0)[:1024]
    a, b = (fp4lab.quantize(x_MK, formats.NVFP4) for x_MK in matrices)
    expected, bound = expected_product(*(codes_of(x_MK, formats.NVFP4) for x_MK in matrices))
    product = fp4lab.scaled_matmul(a, b, accumulate="fast")
    assert ((product.double() - expected).abs() <= bound + expected.abs() * 2.0**-8).all()


def test_bf16_operands_have_float32_sums() -> None:
    a_MK, b_NK = large()[:512], large()[512:1024]
    alpha = torch.tensor([3.0], device="cuda")
    expected = a_MK.double() @ b_NK.double().t() * 3
    terms = a_MK.double().abs() @ b_NK.double().abs().t() * 3
    bound = terms * (2 * a_MK.shape[1] + 4) * 2.0**-24
    for dtype, rounding in ((torch.float32, 0.0), (torch.bfloat16, 2.0**-8)):
        product = ops.matmul(a_MK, b_NK, alpha, dtype)
        assert product.dtype == dtype
        assert ((product.double() - expected).abs() <= bound + expected.abs() * rounding).all()
    assert ops.matmul(a_MK[:0], b_NK, alpha, torch.bfloat16).shape == (0, 512)


def test_a_gpu_chooses_triton() -> None:
    assert backends.chosen(torch.device("cuda")) == "triton"


@pytest.mark.parametrize("counts", [(1000, 0, 3090, 6), (0, 4096, 0, 0)], ids=str)
def test_grouped_products_of_a_layer_s_operands(counts: tuple[int, ...]) -> None:
    """As the operator gives them: bf16 rows and matrices, row counts that stay on the GPU."""
    a_TK = large()
    b_ENK = torch.stack([a_TK.roll(e, 1)[:512] for e in range(4)])
    alpha_E = torch.tensor([1.0, 2.0, 0.5, 3.0], device="cuda")
    row_counts = torch.tensor(counts, device="cuda")
    for dtype, rounding in ((torch.float32, 0.0), (torch.bfloat16, 2.0**-8)):
        out = ops.grouped_matmul(a_TK, b_ENK, alpha_E, row_counts, dtype)
        rows = out.split(counts)
        for e, a_MK in enumerate(a_TK.split(counts)):
            b_NK, alpha = b_ENK[e].double(), float(alpha_E[e])
            expected = a_MK.double() @ b_NK.t() * alpha
            terms = a_MK.double().abs() @ b_NK.abs().t() * alpha
            bound = terms * (2 * a_TK.shape[1] + 4) * 2.0**-24 + expected.abs() * rounding
            assert ((rows[e].double() - expected).abs() <= bound).all()


def test_grouped_products_of_many_tiles() -> None:
    x_MK = large()
    a = codes_of(x_MK, formats.NVFP4)
    matrices = [codes_of(x_MK.roll(e, 1)[:512], formats.NVFP4) for e in range(4)]
    b = Factor(
        torch.stack([matrix.values for matrix in matrices]),
        torch.stack([matrix.scales for matrix in matrices if matrix.scales is not None]),
        torch.cat([matrix.epilogue for matrix in matrices]),
        formats.NVFP4,
        2048,
    )
    ends = torch.tensor([1000, 1000, 4090, 4096], device="cuda")
    out = triton_grouped.grouped_matmul(a, b, ends)
    start = 0
    for matrix, end in zip(matrices, ends.tolist(), strict=True):
        if end > start:
            expected, bound = expected_product(a, matrix)
            assert ((out.double() - expected).abs() <= bound)[start:end].all()
        start = end


def test_a_quantizer_on_another_stream_and_without_synchronizing() -> None:
    x_MK, stream = large(), torch.cuda.Stream()
    asked = Quantization(x_MK, formats.NVFP4, noise=Noise(torch.arange(4, device="cuda"), 1, 8))
    expected = quantize.dequantized(asked, asked.x_MK.dtype)
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.stream(stream):
            result = quantize.dequantized(asked, asked.x_MK.dtype)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    stream.synchronize()
    assert same_bits(result, expected)
