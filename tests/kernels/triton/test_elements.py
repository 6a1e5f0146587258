"""Casts, Hadamard transforms and Philox by Triton kernels equal the reference bit for bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from fp4lab import formats
from fp4lab.errors import InputError
from fp4lab.formats import ElementType, Overflow, Ties
from fp4lab.kernels.hadamard.reference import hadamard as hadamard_reference
from fp4lab.kernels.minifloat.reference import round_nearest
from fp4lab.kernels.philox.reference import random_bits
from tests.kernels import matrices
from tests.kernels.inputs import USER_TYPES, every_bf16, halves_and_neighbours
from tests.kernels.triton.operators import (
    STATE,
    canonical,
    generator,
    hadamard,
    minifloat,
    on,
    philox,
    same_bits,
)

TYPES = [e for e in formats.ELEMENTS.values() if e.has_zero] + USER_TYPES


@pytest.mark.parametrize("element", TYPES, ids=lambda element: element.name)
def test_rounding_to_every_type(element: ElementType, device: str) -> None:
    """On bf16's and fp16's numbers, the halves between them, and all kinds of float32."""
    halves = halves_and_neighbours(torch.float16)
    values = [every_bf16(), halves if element.name == "fp16" else halves[::17]]
    values += [kind(generator(1), 32, 32).flatten() for kind in matrices.KINDS]
    values.append(matrices.any_bits(generator(2), 128, 128).flatten())
    x = torch.cat(values)
    x = torch.cat([x, round_nearest(x, element).nextafter(x.new_tensor(torch.inf))])
    there = on(device, x)
    for ties, overflow in itertools.product(Ties, Overflow):
        expected = canonical(round_nearest(x, element, ties, overflow))
        assert same_bits(minifloat.round_nearest(there, element, ties, overflow), expected)


def test_rounding_of_views_and_of_nothing(device: str) -> None:
    x = torch.randn(6, 8, generator=generator(3))[:, ::2].t()
    assert same_bits(
        minifloat.round_nearest(on(device, x), formats.E4M3), round_nearest(x, formats.E4M3)
    )
    assert minifloat.round_nearest(x[:0].to(device), formats.E4M3).shape == (0, 6)


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        *itertools.product((1, 2, 16, 64), (torch.float32, torch.bfloat16, torch.float16)),
        # of many numbers the interpreter makes half a minute
        pytest.param(1024, torch.bfloat16, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_hadamard(size: int, dtype: torch.dtype, device: str) -> None:
    plain, signed = formats.Hadamard(size), formats.Hadamard(size, signs=7)
    x = matrices.some_special(generator(size), 3 * size, 5).to(dtype)
    there = on(device, x)
    for view, dim, chosen in (
        (x, 0, signed),
        (x.t(), 1, plain),
        (x.view(3, 1, size, 5), 2, signed),
    ):
        got = hadamard.hadamard(there.as_strided(view.shape, view.stride()), chosen, dim)
        assert same_bits(got, canonical(hadamard_reference(view, chosen, dim)))
    with pytest.raises(InputError, match="not a multiple of the Hadamard size"):
        hadamard.hadamard(there, formats.Hadamard(4096))


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("offset", [0, 16, 5, 2**33 + 3])
def test_random_bits(bits: int, offset: int, device: str) -> None:
    ids = torch.randint(0, 2**40, (37,), generator=generator(4))
    for row_ids, stream in ((None, 0), (ids, 2**31 + 9)):
        state = torch.tensor([-5, 2**40 + 1, -1, 3]) if stream else STATE
        arguments = {"stream": stream, "bits": bits, "column_offset": offset}
        expected = random_bits(37, 151, state, row_ids=row_ids, **arguments)
        there = None if row_ids is None else row_ids.to(device)
        got = philox.random_bits(37, 151, state.to(device), row_ids=there, **arguments)
        assert same_bits(got, expected)


def test_random_bits_have_two_modes(device: str) -> None:
    with pytest.raises(InputError, match="not a noise mode"):
        philox.random_bits(1, 1, STATE.to(device), stream=0, bits=16)
