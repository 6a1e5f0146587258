"""Round to nearest, exhaustively: every bf16 number into every type of at most 8 bits.

The oracles are gfloat, ml_dtypes, torch's own casts to bf16 and fp16, and the definition in
`oracle.py`.
"""

from __future__ import annotations

import gfloat
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from fp4lab import formats as f
from fp4lab.formats import ElementType, Overflow, Ties
from fp4lab.kernels.minifloat.reference import encode, round_nearest
from tests.kernels import oracle
from tests.kernels.inputs import (
    FLOAT32,
    GFLOAT,
    USER_TYPES,
    element_types,
    every_bf16,
    halves_and_neighbours,
    same,
)

SMALL = [e for e in f.ELEMENTS.values() if e.bits <= 8 and e.has_zero]
SIGNED = [e for e in SMALL if e.signed]
ML_DTYPES = {
    f.E2M1: ml_dtypes.float4_e2m1fn,
    f.E2M3: ml_dtypes.float6_e2m3fn,
    f.E3M2: ml_dtypes.float6_e3m2fn,
    f.E4M3: ml_dtypes.float8_e4m3fn,
    f.E5M2: ml_dtypes.float8_e5m2,
    USER_TYPES[1]: ml_dtypes.float8_e3m4,
    USER_TYPES[2]: ml_dtypes.float8_e4m3,
}


@pytest.mark.parametrize("overflow", Overflow)
@pytest.mark.parametrize("ties", Ties)
@pytest.mark.parametrize(
    "element", [*SMALL, f.BF16_ELEMENT, f.FP16_ELEMENT, *USER_TYPES], ids=lambda e: e.name
)
def test_every_bf16_rounds_as_defined(element: ElementType, ties: Ties, overflow: Overflow) -> None:
    x = every_bf16()
    if not element.signed:
        x = x[~x.signbit()]
    same(
        round_nearest(x, element, ties, overflow),
        oracle.nearest(x.double().numpy(), element, ties, overflow),
    )


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("ties", [Ties.EVEN, Ties.AWAY])
@pytest.mark.parametrize("name", GFLOAT)
def test_every_bf16_rounds_as_gfloat_does(name: str, ties: Ties, saturate: bool) -> None:
    element, x = f.ELEMENTS[name], every_bf16()
    if element.nan_code is None:
        # gfloat refuses what such a type cannot hold
        x = x[~x.isnan()]
        x = x if saturate else x[x.abs() <= element.max_value]
    mode = {Ties.EVEN: gfloat.RoundMode.TiesToEven, Ties.AWAY: gfloat.RoundMode.TiesToAway}[ties]
    expected = gfloat.round_ndarray(GFLOAT[name], x.double().numpy(), rnd=mode, sat=saturate)
    same(round_nearest(x, element, ties, Overflow(not saturate)), expected)


@pytest.mark.parametrize("element", ML_DTYPES, ids=lambda e: e.name)
def test_every_bf16_gets_the_code_of_ml_dtypes(element: ElementType) -> None:
    x = every_bf16()
    x = x[~x.isnan()]
    codes = encode(round_nearest(x, element, overflow=Overflow.SPECIAL), element).numpy()
    expected = x.numpy().astype(ML_DTYPES[element]).view(np.uint8)
    assert (codes == expected).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bit_types_round_as_torch_does(dtype: torch.dtype) -> None:
    element = {torch.bfloat16: f.BF16_ELEMENT, torch.float16: f.FP16_ELEMENT}[dtype]
    x = halves_and_neighbours(dtype)
    expected = x.to(dtype)
    special = round_nearest(x, element, overflow=Overflow.SPECIAL)
    same(special, expected.to(torch.float32))
    codes = encode(special, element)
    finite = ~x.isnan()
    assert torch.equal(codes[finite], expected.view(torch.int16)[finite])
    limit = torch.finfo(dtype).max
    same(round_nearest(x, element), expected.to(torch.float32).clamp(-limit, limit))


@pytest.mark.parametrize("ties", Ties)
@pytest.mark.parametrize("element", [f.BF16_ELEMENT, f.FP16_ELEMENT], ids=lambda e: e.name)
def test_sixteen_bit_types_round_as_defined(element: ElementType, ties: Ties) -> None:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[element.name]
    x = halves_and_neighbours(dtype)
    for overflow in Overflow:
        expected = oracle.nearest(x.double().numpy(), element, ties, overflow)
        same(round_nearest(x, element, ties, overflow), expected)


@settings(max_examples=50)
@given(element_types(), st.data(), st.sampled_from(Ties), st.sampled_from(Overflow))
def test_any_type_rounds_as_defined(
    element: ElementType, data: st.DataObject, ties: Ties, overflow: Overflow
) -> None:
    steps = st.integers(0, 4 << element.mantissa_bits).map(lambda n: n / 2)
    near = st.builds(
        lambda n, e: np.float32(n * 2.0**e),
        steps,
        st.integers(element.min_exponent, element.max_exponent).map(
            lambda e: e - element.mantissa_bits
        ),
    )
    drawn = data.draw(st.lists(FLOAT32 | near, min_size=1, max_size=40))
    x = torch.from_numpy(np.array(drawn, np.float32))
    rounded = round_nearest(x, element, ties, overflow)
    same(rounded, oracle.nearest(x.double().numpy(), element, ties, overflow))
    again = round_nearest(rounded, element, ties, Overflow.SPECIAL)
    same(again, rounded)


def test_input_is_left_alone() -> None:
    x = every_bf16()
    before = x.clone()
    for element in SMALL:
        for ties in Ties:
            round_nearest(x, element, ties)
            encode(x, element)
    assert torch.equal(x.view(torch.int32), before.view(torch.int32))
