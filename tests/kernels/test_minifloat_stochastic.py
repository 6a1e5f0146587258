"""Stochastic rounding: probabilities by enumeration (8 bits) and bisection (32 bits)."""

from __future__ import annotations

import gfloat
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fp4lab import formats as f
from fp4lab.formats import ElementType, Overflow
from fp4lab.kernels.minifloat.reference import decode, round_nearest, round_stochastic
from tests.kernels import oracle
from tests.kernels.inputs import (
    FLOAT32,
    GFLOAT,
    element_types,
    every_bf16,
    halves_and_neighbours,
    same,
)

EIGHT = [e for e in f.ELEMENTS.values() if e.bits <= 8 and e.signed]
TYPES = [*EIGHT, f.BF16_ELEMENT, f.FP16_ELEMENT]


def every_byte(x: Tensor, element: ElementType) -> Tensor:
    """x rounded with each of the 256 random bytes: `[N, 256]`."""
    bytes_ = torch.arange(256, dtype=torch.uint8).expand(len(x), 256)
    return round_stochastic(x[:, None].expand(-1, 256), element, bytes_, 8)


def assert_exact_probability(x: Tensor, element: ElementType) -> None:
    """Of 256 bytes exactly the last floor(256 f) round up, and only to the next number."""
    rounded = every_byte(x, element)
    expected = oracle.stochastic(
        x.double().numpy()[:, None], element, np.arange(256)[None], 8, Overflow.SATURATE
    )
    same(rounded, expected)


def test_every_bf16_in_range_of_e2m1_rounds_up_with_its_probability() -> None:
    x = every_bf16()
    x = x[x.abs() <= 6]
    assert len(x) == 2 * (0x40C0 + 1)
    for part in x.split(4096):
        assert_exact_probability(part, f.E2M1)


@pytest.mark.parametrize("element", EIGHT, ids=lambda e: e.name)
def test_sampled_bf16_round_up_with_their_probability(element: ElementType) -> None:
    assert_exact_probability(every_bf16()[::41], element)


@pytest.mark.slow
@pytest.mark.parametrize("element", EIGHT, ids=lambda e: e.name)
def test_every_bf16_rounds_up_with_its_probability(element: ElementType) -> None:
    for part in every_bf16().split(4096):
        assert_exact_probability(part, element)


@pytest.mark.parametrize("name", ["e2m1", "e4m3"])
def test_the_8_bit_mode_is_gfloat_s(name: str) -> None:
    element, x = f.ELEMENTS[name], every_bf16()[::211]
    x = x[x.isfinite()]
    random = np.broadcast_to(np.arange(256), (len(x), 256))
    expected = gfloat.round_ndarray(
        GFLOAT[name],
        np.repeat(x.double().numpy()[:, None], 256, axis=1),
        rnd=gfloat.RoundMode.StochasticFastest,
        sat=True,
        srbits=random,
        srnumbits=8,
    )
    same(every_byte(x, element), expected)


def test_float32_noise_far_below_the_smallest_normal_number_does_not_carry() -> None:
    """The sum |x| + noise in float32 would round up to the next number, which has probability 0."""
    x = torch.tensor([(1 - 2.0**-24) * k / 256 * 0.5 for k in range(1, 257)])
    counts = (every_byte(x, f.E2M1) > 0).sum(dim=1)
    assert torch.equal(counts, torch.arange(256))


def grid_and_between(element: ElementType) -> Tensor:
    """float32 numbers on the grid, beside it, and anywhere in its range."""
    if element.bits <= 8:
        grid = decode(torch.arange(element.max_code + 1, dtype=torch.uint8), element)
        generator = torch.Generator().manual_seed(1)
        scale = torch.rand(3000, generator=generator) * 2
        x = torch.cat([grid, scale * grid[torch.arange(3000) % len(grid)]])
        x = torch.cat([x, x.nextafter(torch.tensor(9e9)), x.nextafter(torch.tensor(0.0))])
    else:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[element.name]
        x = halves_and_neighbours(dtype)[::53]
        x = x[x.isfinite()].abs()
    return x[x <= element.max_value]


@pytest.mark.parametrize("element", TYPES, ids=lambda e: e.name)
def test_the_32_bit_mode_rounds_up_from_its_threshold_on(element: ElementType) -> None:
    """The smallest random integer that rounds up, by bisection, is 2^32 - floor(2^32 f)."""
    x = grid_and_between(element)
    count = oracle.threshold(x.double().numpy(), element, 32)
    below = round_stochastic(x, element, torch.zeros(len(x), dtype=torch.int64), 32)
    # the smallest r in [0, 2^32] that rounds up; 2^32 means none does
    low, high = torch.zeros(len(x), dtype=torch.int64), torch.full((len(x),), 1 << 32)
    for _ in range(33):
        middle = (low + high) // 2
        up = round_stochastic(x, element, middle.clamp(max=(1 << 32) - 1), 32) > below
        up &= middle < 1 << 32
        low, high = torch.where(up, low, middle + 1), torch.where(up, middle, high)
    assert torch.equal((1 << 32) - high.clamp(max=1 << 32), torch.from_numpy(count))
    assert (count > 0).any()


@pytest.mark.parametrize("element", TYPES, ids=lambda e: e.name)
@pytest.mark.parametrize("bits", [8, 32])
def test_random_integers_round_as_defined(element: ElementType, bits: int) -> None:
    x = grid_and_between(element)
    x = torch.cat([x, -x, torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf, 3e38])])
    generator = torch.Generator().manual_seed(bits)
    random = torch.randint(0, 1 << bits, x.shape, generator=generator)
    for overflow in Overflow:
        rounded = round_stochastic(
            x, element, random.to(torch.uint8) if bits == 8 else random, bits, overflow
        )
        expected = oracle.stochastic(x.double().numpy(), element, random.numpy(), bits, overflow)
        same(rounded, expected)


@settings(max_examples=50)
@given(element_types(), st.data(), st.sampled_from([8, 32]), st.sampled_from(Overflow))
def test_any_type_rounds_stochastically_as_defined(
    element: ElementType, data: st.DataObject, bits: int, overflow: Overflow
) -> None:
    drawn = data.draw(st.lists(FLOAT32 | st.floats(-8, 8, width=32), min_size=1, max_size=30))
    random = data.draw(
        st.lists(st.integers(0, (1 << bits) - 1), min_size=len(drawn), max_size=len(drawn))
    )
    x = torch.from_numpy(np.array(drawn, np.float32))
    integers = torch.tensor(random, dtype=torch.uint8 if bits == 8 else torch.int64)
    expected = oracle.stochastic(x.double().numpy(), element, np.array(random), bits, overflow)
    same(round_stochastic(x, element, integers, bits, overflow), expected)


@pytest.mark.parametrize("element", TYPES, ids=lambda e: e.name)
def test_numbers_of_the_grid_never_move(element: ElementType) -> None:
    x = round_nearest(grid_and_between(element), element)
    for bits, most in ((8, 255), (32, (1 << 32) - 1)):
        kind = torch.uint8 if bits == 8 else torch.int64
        for value in (0, most // 2, most):
            same(round_stochastic(x, element, torch.full(x.shape, value, dtype=kind), bits), x)
