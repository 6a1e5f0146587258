"""Products by Triton kernels equal the reference where its float32 sums are exact.

Sums of products of numbers with few bits are exact in float32 in any order, so that equal means
equal bits here as elsewhere.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fp4lab import formats
from fp4lab.formats import BlockFormat
from fp4lab.kernels.matmul.reference import epilogue_alpha, scaled_matmul
from tests.kernels.triton.operators import (
    Factor,
    Quantization,
    generator,
    matmul,
    reference,
    same_bits,
    triton_grouped,
    triton_scaled,
)


@pytest.fixture(autouse=True)
def repaired(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cpu":
        from tests.kernels.triton.repair import repair

        repair(monkeypatch)


def small(seed: int, rows: int, columns: int) -> Tensor:
    """Multiples of 1/2 with block amax of 6 or 3: scales of few bits."""
    x = torch.randint(-6, 7, (rows, columns), generator=generator(seed)) / 2
    x[:, ::16] = 6.0
    x[::3] /= 2
    return x


def factor(
    x: Tensor, fmt: BlockFormat | None, device: str, *, codes: bool
) -> tuple[Factor, Tensor, Tensor]:
    """A factor, as codes or in bf16, and the reference's operand and epilogue.

    Without a format it is in high precision.
    """
    if fmt is None:
        none = x.new_zeros(0)
        values = x.to(device, torch.bfloat16)
        return Factor(values, None, none.to(device), None, x.shape[1]), x, none
    encoded, shape = reference.encoded(Quantization(x, fmt)), (x.shape[0], x.shape[1])
    stored, scales, _ = reference.codes_and_scales(encoded, fmt, shape)
    values, epilogue = reference.operand(encoded, fmt, shape)
    there = epilogue.to(device)
    made = Factor(stored.to(device), scales.to(device), there, fmt, x.shape[1])
    if not codes:
        made = made._replace(values=values.to(device, torch.bfloat16), scales=None)
    return made, values, epilogue


@pytest.mark.parametrize(
    ("a_format", "b_format", "shape"),
    [
        (formats.NVFP4, formats.NVFP4_16X16, (40, 50, 96)),
        (formats.NVFP4_ROWWISE, formats.NVFP4, (3, 130, 71)),
        (formats.MXFP4, formats.MXFP8_E4M3, (1, 9, 160)),
        (formats.FP8_ROW_E4M3, formats.FP8_ROW_E5M2, (33, 17, 64)),
        (formats.FP8_TENSOR_E4M3, formats.NVFP4_ROWWISE, (17, 5, 33)),
        (None, formats.NVFP4, (16, 16, 128)),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.parametrize("codes", [(True, True), (False, True), (False, False)], ids=str)
def test_products(
    a_format: BlockFormat | None,
    b_format: BlockFormat | None,
    shape: tuple[int, int, int],
    codes: tuple[bool, bool],
    device: str,
) -> None:
    M, N, K = shape
    a, a_values, a_epilogue = factor(small(1, M, K), a_format, device, codes=codes[0])
    b, b_values, b_epilogue = factor(small(2, N, K), b_format, device, codes=codes[1])
    assert matmul.takes(a)
    assert matmul.takes(b)
    alpha = epilogue_alpha(a_epilogue, b_epilogue, a_format, b_format)
    expected = scaled_matmul(a_values, b_values, alpha, torch.float32)
    exact = a_values.double() @ b_values.double().t()
    assert torch.equal((a_values @ b_values.t()).double(), exact)
    assert exact.any()
    for dtype in (torch.float32, torch.bfloat16):
        assert same_bits(matmul.matmul(a, b, dtype), expected.to(dtype))


@pytest.mark.parametrize("counts", [(20, 0, 150, 0, 7), (0, 0, 0, 0, 0), (1, 1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("codes", [True, False])
def test_grouped_products(counts: tuple[int, ...], codes: bool, device: str) -> None:
    T, N, K, E = max(sum(counts), 1), 40, 80, len(counts)
    fmt = formats.NVFP4
    a, a_values, a_epilogue = factor(small(3, T, K), fmt, device, codes=codes)
    matrices = [factor(small(4 + e, N, K) * (e + 1), fmt, device, codes=codes) for e in range(E)]
    factors = [matrix[0] for matrix in matrices]
    b = Factor(
        torch.stack([one.values for one in factors]),
        torch.stack([one.scales for one in factors if one.scales is not None]) if codes else None,
        torch.cat([one.epilogue for one in factors]),
        fmt,
        K,
    )
    ends = torch.tensor(counts).cumsum(0).to(device)
    out = triton_grouped.grouped_matmul(a, b, ends)
    start = 0
    for (_, values, epilogue), end in zip(matrices, ends.tolist(), strict=True):
        alpha = epilogue_alpha(a_epilogue, epilogue, fmt, fmt)
        expected = scaled_matmul(a_values[start:end], values, alpha, torch.float32)
        assert same_bits(out[start:end], expected)
        start = end
    assert start == sum(counts)


def test_what_is_left_to_other_products(device: str) -> None:
    x = small(5, 32, 64)
    codes = factor(x, formats.NVFP4, device, codes=True)[0]
    assert matmul.takes(codes)
    assert not matmul.takes(codes._replace(format=formats.FP8_1X128_E4M3))
    assert not matmul.takes(codes._replace(format=formats.NVFP4.replace(block=(1, 24))))
    assert not matmul.takes(codes._replace(values=x.to(device)))
    assert not matmul.takes(codes._replace(values=codes.values[:0]))


@pytest.mark.parametrize("shape", [(40, 136, 192), (260, 16, 64), (1, 1, 320)], ids=str)
@pytest.mark.parametrize("fmt", [formats.NVFP4, formats.MXFP4], ids=lambda fmt: fmt.name)
def test_block_scaled_instructions(
    fmt: BlockFormat, shape: tuple[int, int, int], device: str
) -> None:
    """The kernel for Blackwell: scales in 128x4 tiles, read through tensor descriptors."""
    M, N, K = shape
    a, a_values, a_epilogue = factor(small(6, M, K), fmt, device, codes=True)
    b, b_values, b_epilogue = factor(small(7, N, K), fmt, device, codes=True)
    if not triton_scaled.takes(a, b, device):
        pytest.skip("the GPU has no block-scaled matrix instructions, or the interpreter none")
    alpha = epilogue_alpha(a_epilogue, b_epilogue, fmt, fmt)
    expected = scaled_matmul(a_values, b_values, alpha, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        assert same_bits(triton_scaled.matmul(a, b, dtype), expected.to(dtype))
