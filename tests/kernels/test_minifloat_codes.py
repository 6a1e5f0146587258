"""Codes and values, exhaustively: every code of every element type, both ways."""

from __future__ import annotations

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from fp4lab import formats as f
from fp4lab.formats import ElementType, Specials
from fp4lab.kernels.minifloat.reference import decode, encode
from tests.kernels.inputs import USER_TYPES, element_types

USER_SCALE = ElementType("e5m0", 5, 0, 15, Specials.NAN, signed=False, has_zero=False)
TYPES = [e for e in f.ELEMENTS.values() if e.bits <= 16] + USER_TYPES + [USER_SCALE]
DTYPES = {
    f.E2M1: ml_dtypes.float4_e2m1fn,
    f.E2M3: ml_dtypes.float6_e2m3fn,
    f.E3M2: ml_dtypes.float6_e3m2fn,
    f.E4M3: ml_dtypes.float8_e4m3fn,
    f.E5M2: ml_dtypes.float8_e5m2,
    f.E8M0: ml_dtypes.float8_e8m0fnu,
    f.BF16_ELEMENT: ml_dtypes.bfloat16,
    f.FP16_ELEMENT: np.float16,
    USER_TYPES[1]: ml_dtypes.float8_e3m4,
    USER_TYPES[2]: ml_dtypes.float8_e4m3,
}


def every_code(element: ElementType) -> torch.Tensor:
    kind = torch.uint8 if element.bits <= 8 else torch.int16
    return torch.arange(1 << element.bits, dtype=torch.int32).to(kind)


@pytest.mark.parametrize("element", TYPES, ids=lambda e: e.name)
def test_every_code_survives_decoding_and_encoding(element: ElementType) -> None:
    codes = every_code(element)
    values = decode(codes, element)
    back = encode(values, element)
    nan = values.isnan()
    assert torch.equal(back[~nan], codes[~nan])
    if nan.any():
        assert element.nan_code is not None
        assert (back[nan].int() & ~element.sign_code & 0xFFFF == element.nan_code).all()


@pytest.mark.parametrize("element", TYPES, ids=lambda e: e.name)
def test_decoding_follows_the_definition_of_the_type(element: ElementType) -> None:
    codes = every_code(element)
    expected = np.array([element.decode(code) for code in range(1 << element.bits)])
    values = decode(codes, element).numpy()
    assert np.array_equal(values, expected, equal_nan=True)
    number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(values)[number], np.signbit(expected)[number])
    finite = expected[np.isfinite(expected)]
    assert finite.max() == element.max_value
    if element.has_zero:
        assert finite[finite > 0].min() == element.min_subnormal


@pytest.mark.parametrize("element", DTYPES, ids=lambda e: e.name)
def test_every_code_decodes_as_in_ml_dtypes(element: ElementType) -> None:
    codes = every_code(element)
    expected = codes.numpy().view(DTYPES[element]).astype(np.float32)
    assert np.array_equal(decode(codes, element).numpy(), expected, equal_nan=True)


@pytest.mark.parametrize("name", ["e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "e8m0"])
def test_every_code_decodes_as_in_gfloat(name: str) -> None:
    element = f.ELEMENTS[name]
    fmt = getattr(gfloat.formats, f"format_info_ocp_{name}")
    expected = gfloat.decode_ndarray(fmt, every_code(element).numpy())
    assert np.array_equal(decode(every_code(element), element).numpy(), expected, equal_nan=True)


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        (f.E4M3, torch.float8_e4m3fn),
        (f.E5M2, torch.float8_e5m2),
        (f.E8M0, torch.float8_e8m0fnu),
        (f.BF16_ELEMENT, torch.bfloat16),
        (f.FP16_ELEMENT, torch.float16),
    ],
    ids=str,
)
def test_every_code_decodes_as_in_torch(element: ElementType, dtype: torch.dtype) -> None:
    expected = every_code(element).view(dtype).to(torch.float32)
    assert torch.equal(decode(every_code(element), element).nan_to_num(-1), expected.nan_to_num(-1))


def test_the_tables_of_the_smallest_types_are_the_published_ones() -> None:
    positive = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    assert f.E2M1.values() == positive + tuple(-v for v in positive)
    assert f.INT4.values()[:8] == tuple(map(float, range(8)))
    assert f.E1M2.values()[:8] == tuple(n / 4 for n in range(8))
    assert (f.E2M3.max_value, f.E3M2.max_value) == (7.5, 28.0)
    assert (f.E4M3.max_value, f.E5M2.max_value, f.UE5M3.max_value) == (448.0, 57344.0, 61440.0)


@settings(max_examples=50)
@given(element_types())
def test_codes_of_any_type_survive(element: ElementType) -> None:
    codes = every_code(element)
    values = decode(codes, element)
    finite = ~values.isnan()
    assert torch.equal(encode(values, element)[finite], codes[finite])
    magnitudes = values[: element.max_code + 1]
    assert (magnitudes.diff() > 0).all()
    assert magnitudes[-1] == element.max_value
