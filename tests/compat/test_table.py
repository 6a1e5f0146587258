"""The table of tools: its formats are those of the recorded arrays, and its words are true."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import fp4lab
from fp4lab import compat
from fp4lab import formats as f
from fp4lab.compat import words
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat, Direction
from fp4lab.kernels.layout.reference import unpack_nibbles
from fp4lab.kernels.minifloat.reference import decode
from tests.golden import arrays, catalogue, computed

FORMATS = list(dict.fromkeys(row.format for row in compat.TABLE))
BYTES = [fmt for fmt in FORMATS if fmt.scale != f.FP32]


def name(of: Any) -> str:
    return of.name if isinstance(of, BlockFormat) else f"{of.tool} {of.what}"


def keys(row: compat.Row) -> list[str]:
    file = row.golden.removesuffix(".npz")
    return [key for key in arrays.load(file) if re.fullmatch(row.pattern, key)]


@pytest.mark.parametrize("row", compat.TABLE, ids=name)
def test_a_rows_arrays_are_computed_with_its_format(
    row: compat.Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[BlockFormat] = set()
    functions = {"quantize": fp4lab.quantize, "fake_quantize": fp4lab.fake_quantize}

    def spy(function: str) -> Any:
        def call(x: torch.Tensor, fmt: BlockFormat, **how: Any) -> Any:
            used.add(fmt)
            return functions[function](x, fmt, **how)

        return call

    for function in functions:
        monkeypatch.setattr(fp4lab, function, spy(function))
    file = row.golden.removesuffix(".npz")
    claimed = [key for key in keys(row) if catalogue.reason_not(file, key) is None]
    assert len(claimed) > 5
    for key in claimed[:3]:
        computed._quantized.cache_clear()
        [(family, parts)] = catalogue.family_of(file, key)
        family.compute(**parts)
    assert {fmt.definition for fmt in used} == {row.format.definition}


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_every_format_is_registered(fmt: BlockFormat) -> None:
    assert f.get(fmt.name) == fmt


def test_other_tools_have_no_rows() -> None:
    assert {row.tool for row in compat.TABLE} == set(compat.tools())
    assert all(row.tool == "torchao" for row in compat.get("torchao"))
    with pytest.raises(InputError, match="did you mean 'compressed-tensors'"):
        compat.get("compressed_tensors")


def two_blocks(fmt: BlockFormat, *values: float) -> torch.Tensor:
    """A row whose first block has a largest element, and its second begins with these values."""
    assert fmt.block is not None
    side = fmt.block[1]
    x = torch.zeros(fmt.block[0] or 1, 2 * side)
    x[:, 0] = fmt.target
    x[0, side : side + len(values)] = torch.tensor(values)
    return x


@pytest.mark.parametrize("fmt", BYTES, ids=name)
def test_the_scale_bytes_of_zeros_are_as_said(fmt: BlockFormat) -> None:
    beside = fp4lab.quantize(two_blocks(fmt), fmt).scales[0, 1].item()
    assert f"0x{beside:02X}" == words.zero_block(fmt)
    alone = fp4lab.quantize(torch.zeros_like(two_blocks(fmt)), fmt).scales
    said = words.zero_tensor(fmt)
    assert fmt.scale is not None
    if said == "NaN":
        assert decode(alone, fmt.scale).isnan().all()
    else:
        assert said == "as of a block"
        assert (alone == beside).all()


@pytest.mark.parametrize("fmt", BYTES, ids=name)
def test_the_smallest_scale_is_as_said(fmt: BlockFormat) -> None:
    """Of a block 2^-20 as large as another (MX: of numbers near float32's smallest)."""
    tiny = 2.0**-140 if fmt.scale == f.E8M0 else fmt.target * 2.0**-20
    x = two_blocks(fmt, tiny)
    assert fmt.scale is not None
    scale = decode(fp4lab.quantize(x, fmt).scales, fmt.scale)[0, 1].item()
    said = words.smallest_scale(fmt)
    least = 0.0 if said == "0" else 2.0 ** int(said.removeprefix("2^"))
    if fmt.block_scale == f.BlockScale.COMPRESSED_TENSORS:
        # what would be less is replaced by a larger one
        assert scale == fmt.zero_scale
        x = two_blocks(fmt, fmt.target * 2.0**-9 / fmt.cap)
        scale = decode(fp4lab.quantize(x, fmt).scales, fmt.scale)[0, 1].item()
    assert scale == least


def codes_of(fmt: BlockFormat, *values: float) -> list[int]:
    """Of values in a block whose scales are powers of two, in whatever order they are computed."""
    assert fmt.block is not None
    side = fmt.block[1] or 16
    scale = 1.0 if fmt.level == f.Level.NONE else 128.0
    x = torch.zeros(fmt.block[0] or 1, 2 * side)
    x[:, 0] = fmt.target * (1.0 if fmt.level == f.Level.NONE else fmt.cap)
    x[0, side] = fmt.target * scale
    x[0, side + 1 : side + 1 + len(values)] = torch.tensor(values) * scale
    q = fp4lab.quantize(x, fmt)
    codes = unpack_nibbles(q.codes, 2 * side) if fmt.packed else q.codes
    return codes[0, side + 1 : side + 1 + len(values)].tolist()


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_the_codes_of_zeros_are_as_said(fmt: BlockFormat) -> None:
    codes = codes_of(fmt, -0.0, 0.0, -fmt.element.min_subnormal / 8)
    assert not any(code & ~fmt.element.sign_code for code in codes)
    assert " ".join("8" if code else "0" for code in codes) == words.negative_zero(fmt)


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt.element == f.E2M1], ids=name)
def test_halves_go_where_is_said(fmt: BlockFormat) -> None:
    """0.75 and 1.75 are between an odd and an even code, 1.25 between an even and an odd one.

    A block that 4-over-6 or a search scales otherwise has no halves: these choose nothing here.
    """
    plain = fmt.replace(selection=f.Selection.NONE) if fmt.selection else fmt
    found = codes_of(plain, 0.75, 1.25, 1.75)
    assert found == {"to even": [2, 2, 4], "to zero": [1, 2, 3]}[words.halves(fmt)]


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt.element == f.E2M1], ids=name)
def test_the_code_of_negative_zero_is_as_said(fmt: BlockFormat) -> None:
    q = fp4lab.quantize(two_blocks(fmt, 1.0), fmt)
    minus = torch.full_like(q.codes, 0x88)
    zeros = fp4lab.QuantizedTensor(minus, q.scales, q.tensor_scale, fmt, q.shape).dequantize()
    assert not zeros.any()
    assert {"+0": not zeros.signbit().any(), "-0": bool(zeros.signbit().all())}[
        words.decoded_zero(fmt)
    ]


@pytest.mark.parametrize("fmt", BYTES, ids=name)
def test_the_second_level_is_what_is_said(fmt: BlockFormat) -> None:
    q = fp4lab.quantize(two_blocks(fmt).clone(), fmt)
    said = words.second_level(fmt)
    if said == "none":
        assert q.tensor_scale.numel() == 0
        return
    amax = np.float32(fmt.target)
    expected = {
        Direction.AMAX: ("amax", amax),
        Direction.ENCODE: ("C M / amax (encode)", np.float32(fmt.amax_factor) / amax),
        Direction.DECODE: ("amax / (C M) (decode)", amax / np.float32(fmt.amax_factor)),
    }[fmt.direction]
    assert said == expected[0]
    np.testing.assert_allclose(q.tensor_scale.numpy(), expected[1], rtol=2**-8)


def test_formats_that_are_transformer_engines_differ_in_nothing() -> None:
    alike = {fmt.name for fmt in BYTES if not compat.differences(fmt)}
    assert alike == {"nvfp4", "nvfp4_16x16", "nvfp4_rowwise", "mxfp8_e4m3"}
    assert compat.differences(f.NVFP4_COMPRESSED_TENSORS)[0] == "second level: C M / amax (encode)"
