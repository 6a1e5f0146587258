"""Batches: every window once an epoch, the same on every machine, nothing held out is trained on.

Most corpora here are `bytes(range(n))`, in which a byte is its own position.
"""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fp4lab.data import Corpus, TokenBatches, bits_per_byte
from fp4lab.errors import InputError


def counting(num_bytes: int = 250) -> Corpus:
    return Corpus.from_files("counting", [("a", bytes(range(num_bytes)))])


def make(**changes: Any) -> TokenBatches:
    options = {"sequence_length": 8, "batch_size": 3, "seed": 7, "validation_fraction": 0.3}
    return TokenBatches(counting(), **(options | changes))


def starts(data: TokenBatches, first: int, last: int) -> list[int]:
    """Where the windows of training samples first to last - 1 begin."""
    batches = range(first // data.batch_size, -(-last // data.batch_size))
    rows = [int(row[0]) for index in batches for row in data.train(index)[0]]
    skipped = batches.start * data.batch_size
    return rows[first - skipped : last - skipped]


@settings(max_examples=25)
@given(st.integers(100, 250), st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**64 - 1))
def test_an_epoch_shows_every_window_once(
    num_bytes: int, length: int, batch: int, seed: int
) -> None:
    data = TokenBatches(
        counting(num_bytes), sequence_length=length, batch_size=batch, seed=seed,
        validation_fraction=0.2,
    )  # fmt: skip
    train_bytes, windows = num_bytes - round(0.2 * num_bytes), data.windows_per_epoch
    for epoch in (0, 1, 5):
        places = sorted(starts(data, epoch * windows, (epoch + 1) * windows))
        assert places == list(range(places[0], places[0] + windows * length, length))
        assert places[0] < length
        assert places[-1] + length < train_bytes
        # Fewer than two windows' worth of bytes is never a target in this epoch.
        assert train_bytes - windows * length < 2 * length


def test_a_batch_is_tokens_and_the_bytes_that_follow() -> None:
    tokens_BT, targets_BT = make().train(0)
    assert tokens_BT.shape == targets_BT.shape == (3, 8)
    assert tokens_BT.dtype == targets_BT.dtype == torch.int64
    assert tokens_BT.is_contiguous()
    assert targets_BT.is_contiguous()
    assert torch.equal(targets_BT, tokens_BT + 1)


def test_batches_are_pure_functions_of_seed_and_index() -> None:
    one, other = make(), make()
    order = [4, 40, 0, 4, 17]
    for index in order:
        for left, right in zip(one.train(index), other.train(index), strict=True):
            assert torch.equal(left, right)
    windows = one.windows_per_epoch
    epochs = [starts(one, epoch * windows, (epoch + 1) * windows) for epoch in range(4)]
    assert all(epochs[i] != epochs[j] for i in range(4) for j in range(i))
    assert len({epoch[0] % 8 for epoch in epochs}) > 1  # the cut moves between epochs
    assert starts(make(seed=8), 0, windows) != epochs[0]
    assert starts(pickle.loads(pickle.dumps(one)), 0, windows) == epochs[0]


def test_the_order_is_pinned() -> None:
    """Philox's raw stream is the same everywhere; a change here would break every resumed run."""
    assert starts(make(), 0, 10) == [60, 124, 28, 4, 44, 20, 12, 148, 92, 156]


def test_batch_size_only_cuts_the_same_order_differently() -> None:
    assert starts(make(batch_size=1), 0, 60) == starts(make(batch_size=5), 0, 60)


def test_validation_is_fixed_even_and_apart_from_training() -> None:
    data = make()
    batches = data.validation()
    assert {tokens_BT.shape for tokens_BT, _ in batches} == {(3, 8)}
    firsts = [int(row[0]) for tokens_BT, _ in batches for row in tokens_BT]
    train_bytes = 250 - 75
    assert firsts[0] == train_bytes
    assert firsts[-1] == 250 - 9
    gaps = {after - before for before, after in itertools.pairwise(firsts)}
    assert min(gaps) >= 8
    assert max(gaps) - min(gaps) <= 1
    seen = {int(v) for i in range(100) for half in data.train(i) for v in half.flatten()}
    assert max(seen) < train_bytes
    for (tokens_BT, targets_BT), (again_BT, _) in zip(batches, data.validation(), strict=True):
        assert torch.equal(tokens_BT, again_BT)
        assert torch.equal(targets_BT, tokens_BT + 1)
    for other in (make(seed=1), make(seed=2)):
        assert torch.equal(other.validation()[0][0], batches[0][0])


@given(st.integers(1, 9))
def test_validation_gives_the_number_of_windows_asked_for(windows: int) -> None:
    shapes = [tuple(tokens_BT.shape) for tokens_BT, _ in make().validation(windows)]
    expected = [(windows, 8)] if windows < 3 else [(3, 8)] * (windows // 3)
    assert shapes == expected


def test_validation_is_49152_tokens_by_default() -> None:
    text = bytes(range(256)) * 4000
    data = TokenBatches(
        Corpus.from_files("long", [("a", text)]), sequence_length=64, batch_size=16,
        validation_fraction=0.1,
    )  # fmt: skip
    assert sum(tokens_BT.numel() for tokens_BT, _ in data.validation()) == 49_152


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequence_length": 100}, ["'counting'", "175 training", "75 held-out", "=100"]),
        ({"batch_size": 30}, ["175 training", "31 and 1 windows"]),
        ({"validation_fraction": 0.02}, ["5 held-out"]),
        ({"sequence_length": 0}, ["sequence_length=0"]),
        ({"batch_size": -1}, ["batch_size=-1"]),
        ({"seed": -1}, ["seed=-1"]),
        ({"seed": 2**64}, [f"seed={2**64}"]),
        ({"validation_fraction": 1.5}, ["validation_fraction=1.5"]),
    ],
)
def test_what_cannot_be_cut_is_an_error_that_says_why(
    changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        make(**changes)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_wrong_indices_are_errors() -> None:
    with pytest.raises(InputError, match="index=-1"):
        make().train(-1)
    for windows in (0, 10):
        with pytest.raises(InputError, match=f"num_windows={windows} must be 1 to 9"):
            make().validation(windows)


def test_bits_per_byte() -> None:
    assert bits_per_byte(math.log(2)) == 1.0
    assert bits_per_byte(4 * math.log(2), tokens_per_byte=0.25) == 1.0
    assert make().tokens_per_byte == 1.0
