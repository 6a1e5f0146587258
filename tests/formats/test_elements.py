"""Element types as data: what is derived from five integers and two flags."""

from __future__ import annotations

import math

import gfloat
import gfloat.formats
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp4lab import formats as f
from fp4lab.formats import ElementType, Specials

#: name: bits, largest, smallest normal, smallest positive, NaN codes, has infinity
PUBLISHED = {
    "e2m1": (4, 6.0, 1.0, 0.5, 0, False),
    "e2m3": (6, 7.5, 1.0, 0.125, 0, False),
    "e3m2": (6, 28.0, 0.25, 0.0625, 0, False),
    "e4m3": (8, 448.0, 2.0**-6, 2.0**-9, 2, False),
    "e5m2": (8, 57344.0, 2.0**-14, 2.0**-16, 6, True),
    "e8m0": (8, 2.0**127, 2.0**-127, 2.0**-127, 1, False),
    "ue4m3": (7, 448.0, 2.0**-6, 2.0**-9, 1, False),
    "ue5m3": (8, 61440.0, 2.0**-14, 2.0**-17, 7, True),
    "int4": (4, 7.0, 4.0, 1.0, 0, False),
    "e1m2": (4, 1.75, 1.0, 0.25, 0, False),
    "bf16": (16, 3.3895313892515355e38, 2.0**-126, 2.0**-133, 254, True),
    "fp16": (16, 65504.0, 2.0**-14, 2.0**-24, 2046, True),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_figures_of_the_published_types(name: str) -> None:
    element = f.ELEMENTS[name]
    bits, largest, normal, smallest, num_nans, has_infinity = PUBLISHED[name]
    assert (element.bits, element.max_value, element.min_normal) == (bits, largest, normal)
    assert element.has_zero is False or element.min_subnormal == smallest
    values = [element.decode(code) for code in range(1 << bits)]
    assert sum(map(math.isnan, values)) == num_nans
    assert (float("inf") in values) == has_infinity
    assert min(value for value in values if value > 0) == smallest
    assert values[element.max_code] == largest


@pytest.mark.parametrize("name", ["e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "e8m0"])
def test_figures_are_those_of_gfloat(name: str) -> None:
    element, other = f.ELEMENTS[name], getattr(gfloat.formats, f"format_info_ocp_{name}")
    assert element.max_value == other.max
    assert element.min_normal == other.smallest_normal if element.has_zero else True
    assert element.bits == other.k
    assert element.bias == other.expBias if hasattr(other, "expBias") else True
    assert [element.decode(c) for c in range(4)] == [
        gfloat.decode_float(other, c).fval for c in range(4)
    ]


def test_every_known_type_is_in_the_table_under_its_name() -> None:
    assert set(PUBLISHED) | {"fp32"} == set(f.ELEMENTS)
    assert all(element.name == name for name, element in f.ELEMENTS.items())


@settings(max_examples=60)
@given(st.integers(2, 5), st.integers(1, 3), st.integers(-6, 20), st.sampled_from(Specials))
def test_magnitudes_grow_with_their_codes(
    exponent_bits: int, mantissa_bits: int, bias: int, specials: Specials
) -> None:
    element = ElementType("mine", exponent_bits, mantissa_bits, bias, specials)
    values = [element.decode(code) for code in range(element.max_code + 1)]
    assert values == sorted(set(values))
    assert values[-1] == element.max_value
    assert element.decode(element.sign_code + 1) == -element.decode(1)
    if element.nan_code is not None:
        assert math.isnan(element.decode(element.nan_code))
    if element.inf_code is not None:
        assert element.decode(element.inf_code) == float("inf")
