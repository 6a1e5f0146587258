"""Columns in blocks of 16 and 32, row by row: equal to the reference bit for bit."""

from __future__ import annotations

import pytest
import torch

from fp4lab import formats
from fp4lab.formats import BlockFormat, Hadamard
from tests.kernels import matrices
from tests.kernels.triton.operators import (
    SIGNED,
    STATE,
    Noise,
    Quantization,
    asked_on,
    canonical,
    generator,
    noise,
    quantize,
    reference,
    same_bits,
    triton_columns,
)

CASES = [
    (formats.NVFP4, SIGNED, 8, 16),
    (formats.NVFP4, None, 8, 5),
    (formats.NVFP4_ROWWISE, Hadamard(2), 32, 4),
    (formats.NVFP4_ONE_LEVEL, None, 0, 0),
    (formats.MXFP4, SIGNED, 32, 3),
    (formats.MXFP6_E2M3, Hadamard(32), 0, 0),
    (formats.MXFP8_E5M2, Hadamard(4), 8, 0),
    (formats.NVFP4.replace(name="int4", element=formats.INT4, keep_negative_zero=True), None, 0, 0),
]


@pytest.fixture(autouse=True)
def small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small matrices have several, and a last one with fewer blocks and columns."""
    monkeypatch.setattr(triton_columns, "WIDTH", 64)
    monkeypatch.setattr(triton_columns, "REPEAT", 2)


@pytest.mark.parametrize(
    ("fmt", "transform", "bits", "offset"), CASES, ids=[f"{c[0].name}-{c[2]}" for c in CASES]
)
@pytest.mark.parametrize("result", ["codes", "operand", "turned", "values"])
def test_columns(
    fmt: BlockFormat, transform: Hadamard | None, bits: int, offset: int, result: str, device: str
) -> None:
    assert fmt.block is not None
    # several programs where the block is short: a vector of rows takes the interpreter long
    sides = (fmt.block[1], 70 if fmt.block[1] == 16 else 30)
    kind = matrices.some_special if result == "codes" else matrices.few_bits
    x_MK = kind(generator(bits), *sides).to([torch.bfloat16, torch.float32][bits // 8 % 2])
    amax = {formats.Level.TENSOR: torch.tensor([5.0]), formats.Level.ROW: torch.ones(sides[1])}
    given = amax.get(fmt.level)
    asked = Quantization(x_MK, fmt, True, transform, noise(bits, 3, offset), given)
    there = asked_on(device, asked)
    assert triton_columns.takes(there)
    encoded = reference.encoded(asked)
    if result == "codes":
        expected = reference.codes_and_scales(encoded, fmt, asked.shape)
        found = quantize.codes_and_scales(there)
    elif result == "values":
        values = reference.dequantized(encoded, fmt, asked.shape).to(x_MK.dtype)
        expected, found = [canonical(values)], [quantize.dequantized(there, x_MK.dtype)]
    else:
        turned = result == "turned"
        expected = list(reference.operand(encoded, fmt, asked.shape))
        found = list(quantize.operand(there, torch.float32, turned))
        assert found[0].stride() == ((sides[0], 1) if turned else (1, sides[1]))
    assert [same_bits(*two) for two in zip(found, expected, strict=True)] == [True] * len(expected)


@pytest.mark.parametrize("special", [1.0, torch.inf, -torch.nan], ids=str)
@pytest.mark.parametrize("transform", [None, Hadamard(16)], ids=str)
def test_amax_of_tensors_and_columns(
    transform: Hadamard | None, special: float, device: str
) -> None:
    x_MK = torch.randn(48, 70, generator=generator(4)).to(torch.bfloat16)
    x_MK[40, 67] = special
    for fmt in (formats.NVFP4, formats.NVFP4_ROWWISE):
        asked = Quantization(x_MK, fmt, True, transform)
        z = canonical(reference.prepare(asked).abs())
        expected = z.amax(1) if fmt is formats.NVFP4_ROWWISE else z.amax().view(1)
        assert triton_columns.takes(there := asked_on(device, asked))
        assert same_bits(quantize.amax(there), canonical(expected))


def test_several_blocks_of_a_program(device: str) -> None:
    asked = Quantization(torch.randn(48, 30, generator=generator(6)), formats.NVFP4, True)
    asked = asked._replace(noise=noise(8), amax=torch.tensor([4.0]))
    encoded = reference.encoded(asked)
    expected = reference.codes_and_scales(encoded, asked.format, (30, 48))
    assert all(map(same_bits, quantize.codes_and_scales(asked_on(device, asked)), expected))


def test_row_numbers_of_permuted_tokens(device: str) -> None:
    x_MK = matrices.few_bits(generator(9), 16, 40)
    ids = torch.randperm(16, generator=generator(2)) + 2**32 - 7
    asked = Quantization(x_MK, formats.MXFP4.replace(block=(1, 16)), True)
    asked = asked._replace(noise=Noise(STATE, 1, 8, ids, 0))
    found = quantize.operand(asked_on(device, asked))
    assert same_bits(
        found[0], reference.operand(reference.encoded(asked), asked.format, (40, 16))[0]
    )


def test_what_is_left_to_tiles(device: str) -> None:
    x_MK = torch.randn(64, 40, device=device)
    taken = Quantization(x_MK, formats.NVFP4, True, Hadamard(16))
    assert triton_columns.takes(taken)
    for change in (
        {"transposed": False},
        {"format": formats.NVFP4_16X16},
        {"format": formats.NVFP4_4OVER6},
        {"x_MK": x_MK[:40], "hadamard": None},
        {"hadamard": Hadamard(64)},
        {"hadamard": Hadamard(1, (-1,))},
    ):
        assert not triton_columns.takes(taken._replace(**change))
