"""Philox4x32-10 and the layout of its words over a tensor."""

from __future__ import annotations

import hashlib
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fp4lab.errors import InputError
from fp4lab.functional import noise_state
from fp4lab.kernels.philox.reference import layer_key, philox4x32, random_bits

ONES = 0xFFFFFFFF
#: counter, key, words: the known answers of Random123 1.14 (kat_vectors)
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
#: the same from randomgen 2.5.1, for counters and keys drawn at random
RANDOMGEN = [
    (
        (0xABB8E5A8, 0xCE14ABEE, 0x05CC99F5, 0xCED53525),
        (0x7806ADC0, 0x83EC603F),
        (0x6A4A45EF, 0xFF771AE4, 0x237349B9, 0x6E3980A4),
    ),
    (
        (0xA1570476, 0x492A477C, 0xFAC210ED, 0x0DCE670A),
        (0x4726028F, 0x62247685),
        (0x5D564F27, 0x89903737, 0x0DEB6747, 0x3412673F),
    ),
]


def philox_of_integers(counter: list[int], key: tuple[int, int]) -> list[int]:
    """One block of Philox4x32-10 in Python integers."""
    words, (low, high) = list(counter), key
    for _ in range(10):
        a, b = words[0] * 0xD2511F53, words[2] * 0xCD9E8D57
        words = [(b >> 32) ^ words[1] ^ low, b & ONES, (a >> 32) ^ words[3] ^ high, a & ONES]
        low, high = (low + 0x9E3779B9) & ONES, (high + 0xBB67AE85) & ONES
    return words


def words_of(counter: tuple[int, ...], key: tuple[int, ...]) -> list[int]:
    words = philox4x32(torch.tensor(counter).view(4, 1), torch.tensor(key))
    assert words.dtype == torch.int32
    return (words.view(-1).to(torch.int64) & ONES).tolist()


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN + RANDOMGEN)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    assert words_of(counter, key) == list(words)


WORD = st.integers(0, ONES) | st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, ONES])


@settings(max_examples=50)
@given(st.tuples(WORD, WORD, WORD, WORD), st.tuples(WORD, WORD))
def test_any_block_is_that_of_integer_arithmetic(
    counter: tuple[int, ...], key: tuple[int, int]
) -> None:
    assert words_of(counter, key) == philox_of_integers(list(counter), key)


STATE = torch.tensor([0x01234567, 0x89ABCDEF, 5, 2])


def test_layout_of_8_bits_written_out() -> None:
    """Byte c % 4 of word (c % 16) // 4 of block c // 16; columns 16 to 19 are the next block's."""
    noise = random_bits(2, 20, STATE, stream=3, bits=8)
    assert noise.dtype == torch.uint8
    assert noise.tolist() == [
        [107, 236, 4, 213, 39, 179, 215, 158, 47, 3, 102, 186, 207, 39, 224, 194, 160, 190, 47, 53],
        [217, 22, 150, 61, 178, 5, 66, 113, 189, 83, 166, 223, 99, 130, 59, 5, 163, 132, 73, 213],
    ]


def test_layout_of_32_bits_written_out() -> None:
    """Word c % 4 of block c // 4."""
    noise = random_bits(2, 6, STATE, stream=3, bits=32)
    assert noise.dtype == torch.int64
    assert noise.tolist() == [
        [0xD5685D2E, 0xFF9E06FA, 0x584C360B, 0x916784E4, 0xAD0F6DE9, 0x4DC89464],
        [0xCF7415DA, 0x98C8E086, 0x2D549C85, 0xD0297CF6, 0x24C12DDC, 0x3A0E88F3],
    ]


def expected(row: int, column: int, state: Tensor, stream: int, bits: int) -> int:
    """The noise of one element, from the layout's description."""
    low, high, step, microbatch = (value & ONES for value in state.tolist())
    key = (low ^ (stream * 0x9E3779B9 & ONES), high ^ (bits * 0x85EBCA6B & ONES))
    lanes = 128 // bits
    words = philox_of_integers([column // lanes, row & ONES, step, microbatch], key)
    if bits == 32:
        return words[column % 4]
    return words[column % 16 // 4] >> 8 * (column % 4) & 0xFF


@settings(max_examples=40)
@given(
    st.sampled_from([8, 32]),
    st.integers(0, 5),
    st.integers(0, 40),
    st.integers(0, 1 << 20),
    st.lists(st.integers(0, 1 << 40), min_size=1, max_size=4),
    st.integers(0, 5),
    st.integers(0, (1 << 32) - 1),
)
def test_layout_with_offsets_and_row_numbers(
    bits: int, extra: int, width: int, offset: int, rows: list[int], stream: int, step: int
) -> None:
    state = noise_state(7, "layer", step=step, microbatch=extra)
    noise = random_bits(
        len(rows),
        width,
        state,
        stream=stream,
        bits=bits,
        row_ids=torch.tensor(rows),
        column_offset=offset,
    )
    assert noise.shape == (len(rows), width)
    for i, row in enumerate(rows):
        for j in {0, width // 2, width - 1} if width else ():
            assert noise[i, j] == expected(row, offset + j, state, stream, bits)


@pytest.mark.parametrize("bits", [8, 32])
def test_a_shard_draws_its_part_of_the_whole(bits: int) -> None:
    whole = random_bits(12, 70, STATE, stream=1, bits=bits)
    for first, last in ((0, 12), (3, 7), (11, 12)):
        for left, right in ((0, 70), (5, 6), (16, 48), (33, 70)):
            part = random_bits(
                last - first,
                right - left,
                STATE,
                stream=1,
                bits=bits,
                row_ids=torch.arange(first, last),
                column_offset=left,
            )
            assert torch.equal(part, whole[first:last, left:right])
    order = torch.randperm(12)
    permuted = random_bits(12, 70, STATE, stream=1, bits=bits, row_ids=order)
    assert torch.equal(permuted, whole[order])


def test_empty_tensors_draw_nothing() -> None:
    for bits, rows, columns in itertools.product((8, 32), (0, 3), (0, 5)):
        assert random_bits(rows, columns, STATE, stream=0, bits=bits).shape == (rows, columns)


def test_other_numbers_of_bits_are_refused() -> None:
    with pytest.raises(InputError, match="bits=16"):
        random_bits(1, 1, STATE, stream=0, bits=16)


def test_the_key_is_the_hash_of_seed_and_layer() -> None:
    digest = hashlib.sha256(b"3/blocks.0.up").digest()
    assert layer_key(3, "blocks.0.up") == (
        int.from_bytes(digest[:4], "little"),
        int.from_bytes(digest[4:8], "little"),
    )
    assert noise_state(3, "blocks.0.up", step=4, microbatch=2).tolist() == [
        *layer_key(3, "blocks.0.up"),
        4,
        2,
    ]


SHAPE = (128, 512)
#: standard deviations a statistic of 65,536 fixed draws may lie off; 1 in 3.5 million does
SIGMAS = 5.0


def variants(bits: int) -> dict[str, Tensor]:
    """Noise that differs in one of the things it depends on."""

    def draw(stream: int = 0, rows: Tensor | None = None, offset: int = 0, **how: int) -> Tensor:
        seed, layer = how.pop("seed", 0), how.pop("layer", 0)
        state = noise_state(seed, f"blocks.{layer}.up", **how)
        return random_bits(
            *SHAPE, state, stream=stream, bits=bits, row_ids=rows, column_offset=offset
        )

    return {
        "base": draw(),
        "seed": draw(seed=1),
        "layer": draw(layer=1),
        "step": draw(step=1),
        "microbatch": draw(microbatch=1),
        "stream": draw(stream=1),
        "rows": draw(rows=torch.arange(128, 256)),
        "columns": draw(offset=512),
        "step and microbatch": draw(step=1, microbatch=1),
    }


@pytest.mark.parametrize("bits", [8, 32])
def test_noise_is_independent_across_seed_layer_step_microbatch_stream_and_place(bits: int) -> None:
    """Edge case B41: the correlation of N independent uniform pairs has the deviation 1/sqrt(N)."""
    drawn = {name: noise.double().flatten() for name, noise in variants(bits).items()}
    for (a, x), (b, y) in itertools.combinations(drawn.items(), 2):
        correlation = torch.corrcoef(torch.stack((x, y)))[0, 1].item()
        assert abs(correlation) < SIGMAS / math.sqrt(x.numel()), (a, b)
        equal = (x == y).double().mean().item()
        chance = 2.0**-bits
        assert abs(equal - chance) <= SIGMAS * math.sqrt(chance / x.numel()), (a, b)


@pytest.mark.parametrize("bits", [8, 32])
def test_noise_is_uniform_in_every_lane(bits: int) -> None:
    noise = variants(bits)["base"].double() / 2.0**bits
    lanes = noise.reshape(-1, 128 // bits)
    mean, deviation = (1 - 2.0**-bits) / 2, math.sqrt(1 / 12)
    assert ((lanes.mean(0) - mean).abs() < SIGMAS * deviation / math.sqrt(len(lanes))).all()
    counts = np.bincount((noise.flatten() * 256).long().numpy(), minlength=256)
    each = noise.numel() / 256
    chi = ((counts - each) ** 2 / each).sum()
    assert abs(chi - 255) < SIGMAS * math.sqrt(2 * 255)


def test_neighbours_are_uncorrelated() -> None:
    noise = variants(8)["base"].double()
    for x, y in ((noise[:, 1:], noise[:, :-1]), (noise[1:], noise[:-1])):
        pair = torch.stack((x.flatten(), y.flatten()))
        assert abs(torch.corrcoef(pair)[0, 1].item()) < SIGMAS / math.sqrt(pair.shape[1])


def test_the_two_modes_share_no_noise() -> None:
    bytes_ = random_bits(64, 64, STATE, stream=0, bits=8).flatten()
    words = random_bits(64, 64, STATE, stream=0, bits=32).flatten() >> 24
    equal = (bytes_ == words).double().mean().item()
    assert abs(equal - 1 / 256) < SIGMAS * math.sqrt(1 / 256 / 4096)
