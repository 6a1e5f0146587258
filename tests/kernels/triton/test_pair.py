"""Two operands from one read, dequantization, amax: all equal the reference bit for bit."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from fp4lab import formats
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat, ElementType, Hadamard
from fp4lab.kernels.quantize.stored import Stored
from fp4lab.kernels.schema import is_compiled
from tests.kernels import matrices
from tests.kernels.triton.operators import (
    SIGNED,
    Quantization,
    asked_on,
    canonical,
    generator,
    noise,
    quantize,
    reference,
    same_bits,
    triton_columns,
    triton_pair,
    triton_stored,
)

H16 = Hadamard(16)
SCALES = list(formats.ELEMENTS.values())
FORMATS = [
    formats.NVFP4,
    formats.NVFP4_ROWWISE,
    formats.MXFP8_E5M2,
    formats.FP8_128X128_E4M3,
    formats.NVFP4_4OVER6,
    formats.FP8_ROW_E4M3,
]


def by_reference(asked: Quantization, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    values, epilogue = reference.operand(reference.encoded(asked), asked.format, asked.shape)
    return canonical(values.to(dtype)), epilogue


@pytest.fixture
def small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small matrices have several where columns are read row by row."""
    monkeypatch.setattr(triton_columns, "WIDTH", 64)
    monkeypatch.setattr(triton_columns, "REPEAT", 2)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("row_major", [False, True])
@pytest.mark.usefixtures("by_tiles")
def test_both_operands_of_a_gemm(
    fmt: BlockFormat, dtype: torch.dtype, row_major: bool, device: str
) -> None:
    x_MK = matrices.some_special(generator(1), 96, 80).to(dtype)
    straight = Quantization(x_MK, fmt, noise=noise(8, 1))
    turned = Quantization(x_MK, fmt, True, SIGNED, noise(8, 2))
    here, there = asked_on(device, straight), asked_on(device, turned)
    there = there._replace(x_MK=here.x_MK)
    assert triton_pair.fuses(here, there) == (fmt is not formats.FP8_ROW_E4M3)
    pairs = triton_pair.operand_pair(here, there, dtype, row_major)
    assert pairs[1][0].stride() == ((96, 1) if row_major else (1, 80))
    for results, asked in zip(pairs, (straight, turned), strict=True):
        assert all(map(same_bits, results, by_reference(asked, dtype)))


@pytest.mark.parametrize(
    ("rows", "columns", "transform", "shape"),
    [
        (formats.NVFP4, formats.NVFP4, SIGNED, (32, 40)),
        (formats.NVFP4_16X16, formats.NVFP4, None, (48, 40)),
        (formats.NVFP4_ROWWISE, formats.NVFP4_ROWWISE, SIGNED, (16, 70)),
        (formats.MXFP8_E5M2, formats.MXFP4, Hadamard(4), (32, 40)),
    ],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize("row_major", [False, True])
@pytest.mark.usefixtures("small_programs")
def test_both_operands_with_columns_row_by_row(
    rows: BlockFormat,
    columns: BlockFormat,
    transform: Hadamard | None,
    shape: tuple[int, int],
    row_major: bool,
    device: str,
) -> None:
    # the matrix and its transform have an amax each
    x_MK = torch.randn(shape, generator=generator(11)).to(torch.bfloat16)
    x_MK[3, 7] = 100.0 if row_major else torch.nan
    bits = 32 if rows is formats.MXFP8_E5M2 else 0
    straight = Quantization(x_MK, rows, noise=noise(bits, 1, 16))
    turned = Quantization(x_MK, columns, True, transform, noise(8, 2, 16))
    here, there = asked_on(device, straight), asked_on(device, turned)
    there = there._replace(x_MK=here.x_MK)
    assert triton_pair.fuses(here, there)
    assert triton_pair.by_columns(here, there)
    pairs = triton_pair.operand_pair(here, there, torch.bfloat16, row_major)
    for results, asked in zip(pairs, (straight, turned), strict=True):
        assert all(map(same_bits, results, by_reference(asked, torch.bfloat16)))


def test_which_pairs_read_columns_row_by_row(device: str) -> None:
    x_MK = torch.ones(64, 128, device=device)
    straight, turned = Quantization(x_MK, formats.NVFP4), Quantization(x_MK, formats.NVFP4, True)
    assert triton_pair.by_columns(straight, turned)
    for fmt in (formats.FP8_128X128_E4M3, formats.NVFP4_4OVER6):
        assert not triton_pair.by_columns(straight._replace(format=fmt), turned)
    assert not triton_pair.by_columns(straight, turned._replace(format=formats.NVFP4_16X16))


@pytest.mark.parametrize(("one", "other"), [(H16, None), (H16, Hadamard(32)), (None, None)])
@pytest.mark.usefixtures("by_tiles")
def test_pairs_with_transforms_noise_and_amax(
    one: Hadamard | None, other: Hadamard | None, device: str
) -> None:
    x_MK = matrices.ties_in_bf16(generator(2), 96, 48)
    amax = torch.tensor([3.0]) if one == other else None
    straight = Quantization(x_MK, formats.NVFP4, False, one, None, amax)
    turned = Quantization(x_MK, formats.NVFP4_16X16, True, other, noise(32, 2, 5))
    here, there = asked_on(device, straight), asked_on(device, turned)
    pairs = triton_pair.operand_pair(here, there._replace(x_MK=here.x_MK))
    for results, asked in zip(pairs, (straight, turned), strict=True):
        assert all(map(same_bits, results, by_reference(asked, torch.float32)))


@pytest.mark.parametrize("name", formats.names())
def test_codes_and_scales_back_to_values(name: str, device: str) -> None:
    fmt, shape = formats.get(name), (40, 71)
    x_MK = matrices.some_special(generator(formats.names().index(name)), *shape)
    stored = reference.codes_and_scales(reference.encoded(Quantization(x_MK, fmt)), fmt, shape)
    encoded = reference.from_storage(*stored, fmt, shape[1])
    there = [t.to(device) for t in stored]
    values = reference.dequantized(encoded, fmt, shape)
    # torch decodes what other tools store, in their orders
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    for dtype in dtypes if is_compiled(fmt) else ():
        got = triton_stored.dequantize(Stored(*there, fmt), shape[1], dtype)
        assert same_bits(got, canonical(values.to(dtype)))
    operand = triton_stored.operand(Stored(*there, fmt), shape[1])
    assert all(map(same_bits, operand, reference.operand(encoded, fmt, shape)))


def declared(**fields: object) -> BlockFormat | None:
    """NVFP4 with other fields; None where the formats' own rules forbid it."""
    try:
        return formats.NVFP4.replace(**fields)
    except InputError:
        return None


@pytest.mark.parametrize("scale", SCALES, ids=lambda scale: scale.name)
@pytest.mark.parametrize("rows", [1, formats.WHOLE])
def test_one_scale_of_whole_rows_back_to_values(rows: int, scale: ElementType, device: str) -> None:
    shape = (9, 37)
    x_MK = matrices.some_special(generator(7), *shape)
    sides = {"block": (rows, formats.WHOLE), "scale": scale}
    choices = product(formats.BlockScale, formats.Level, (formats.E2M1, formats.E4M3))
    made = [declared(**sides, block_scale=b, level=v, element=e) for b, v, e in choices]
    allowed = [fmt for fmt in made if fmt is not None and is_compiled(fmt)]
    assert {fmt.whole_rows for fmt in allowed} >= {True}
    for fmt in allowed:
        stored = reference.codes_and_scales(reference.encoded(Quantization(x_MK, fmt)), fmt, shape)
        encoded = reference.from_storage(*stored, fmt, shape[1])
        there = [t.to(device) for t in stored]
        values = canonical(reference.dequantized(encoded, fmt, shape))
        assert same_bits(triton_stored.dequantize(Stored(*there, fmt), shape[1]), values), fmt
        operand = triton_stored.operand(Stored(*there, fmt), shape[1])
        assert all(map(same_bits, operand, reference.operand(encoded, fmt, shape))), fmt


@pytest.mark.parametrize("scale", [formats.E8M0, formats.UE4M3, formats.UE5M3, formats.E4M3])
def test_every_code_of_a_scale_of_rows(scale: ElementType, device: str) -> None:
    power = scale is formats.E8M0
    block_scale = formats.BlockScale.POWER_OF_TWO if power else formats.BlockScale.FOLDED
    fmt = formats.MXFP8_E4M3.replace(
        block=(1, formats.WHOLE),
        scale=scale,
        block_scale=block_scale,
        scale_rule=formats.ScaleRule.NEAREST,
    )
    codes, scales = torch.full((256, 3), 9, dtype=torch.uint8), torch.arange(256, dtype=torch.uint8)
    stored = [codes, scales.view(256, 1), torch.zeros(0)]
    expected = reference.operand(reference.from_storage(*stored, fmt, 3), fmt, (256, 3))
    found = triton_stored.operand(Stored(*(t.to(device) for t in stored), fmt), 3)
    assert all(map(same_bits, found, expected))


@pytest.mark.parametrize("change", [{"block": (3, 24)}, {"element": formats.E5M2}], ids=str)
def test_every_code_and_any_block_back_to_values(change: dict[str, object], device: str) -> None:
    fmt = formats.NVFP4.replace(**change)
    codes = torch.arange(256, dtype=torch.uint8).repeat(9, 1)
    columns = 511 if fmt.packed else 256
    assert fmt.block is not None
    grid = (-(-9 // fmt.block[0]), -(-columns // fmt.block[1]))
    scales = torch.randint(0, 256, grid, dtype=torch.uint8, generator=generator(3))
    amax = torch.tensor([2.5])
    encoded = reference.from_storage(codes, scales, amax, fmt, columns)
    there = [t.to(device) for t in (codes, scales, amax)]
    got = triton_stored.dequantize(Stored(*there, fmt), columns)
    assert same_bits(got, reference.dequantized(encoded, fmt, (9, columns)))


@pytest.mark.parametrize("special", [1.0, torch.inf, -torch.nan], ids=str)
@pytest.mark.usefixtures("by_tiles")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("transform", [None, H16], ids=str)
def test_amax_of_tensors_rows_and_transforms(
    transform: Hadamard | None, transposed: bool, special: float, device: str
) -> None:
    x_MK = torch.randn(160, 144, generator=generator(4)).to(torch.bfloat16)
    x_MK[100, 7] = special
    asked = Quantization(x_MK, formats.NVFP4, transposed, transform)
    z = canonical(reference.prepare(asked).abs())
    there = asked_on(device, asked)
    assert same_bits(quantize.amax(there), canonical(z.amax().view(1)))
    by_row = there._replace(format=formats.NVFP4_ROWWISE)
    assert same_bits(quantize.amax(by_row), canonical(z.amax(1)))
    assert quantize.amax(there._replace(format=formats.MXFP4)).shape == (0,)
