"""Corpora: what is kept, how they are hashed, and that the two parts of a split share nothing."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp4lab.data import Corpus, split
from fp4lab.errors import InputError


def make(sizes: list[int]) -> tuple[Corpus, dict[str, bytes]]:
    """A corpus of files with these sizes, each of its own random content."""
    texts = {f"f{i}": np.random.default_rng(i).bytes(size) for i, size in enumerate(sizes)}
    return Corpus.from_files("made", texts.items()), texts


def test_bytes_are_taken_as_they_are() -> None:
    corpus = Corpus.from_files("mixed", [("b", b"\xff\x00\r\n"), ("a", b"xy")])
    assert corpus.data.tobytes() == b"\xff\x00\r\nxy"
    assert corpus.data.dtype == np.uint8
    assert not corpus.data.flags.writeable
    assert [(file.name, file.num_bytes) for file in corpus.files] == [("b", 4), ("a", 2)]
    assert corpus.num_bytes == 6
    assert repr(corpus) == "Corpus(name='mixed', num_bytes=6, files=2)"


def test_the_hash_is_that_of_sha256sums_listing() -> None:
    listing = "".join(
        f"{hashlib.sha256(text).hexdigest()}  {name}\n" for name, text in [("a", b"1"), ("b", b"2")]
    )
    corpus = Corpus.from_files("two", [("a", b"1"), ("b", b"2")])
    assert corpus.sha256 == hashlib.sha256(listing.encode()).hexdigest()
    for other in ([("b", b"2"), ("a", b"1")], [("a", b"12")], [("a", b"1"), ("c", b"2")]):
        assert Corpus.from_files("two", other).sha256 != corpus.sha256


def test_copies_and_empty_files_are_left_out() -> None:
    files = [("a", b"text"), ("empty", b""), ("b", b"other"), ("copy of a", b"text")]
    corpus = Corpus.from_files("four", files)
    assert [file.name for file in corpus.files] == ["a", "b"]
    assert corpus.data.tobytes() == b"textother"


@pytest.mark.parametrize("files", [[], [("a", b"")]])
def test_no_text_is_an_error(files: list[tuple[str, bytes]]) -> None:
    with pytest.raises(InputError, match="corpus 'nothing' holds no text"):
        Corpus.from_files("nothing", files)


SIZES = st.lists(st.integers(20, 400), min_size=1, max_size=30)


@given(SIZES, st.floats(0.02, 0.5))
def test_a_split_is_disjoint_and_complete(sizes: list[int], fraction: float) -> None:
    corpus, texts = make(sizes)
    parts = split(corpus, fraction)
    held_out = b"".join(texts[name] for name in parts.held_out)
    validation, train = parts.validation.tobytes(), parts.train.tobytes()
    assert len(train) + len(validation) == corpus.num_bytes
    if parts.cut_file is None:
        assert validation == held_out
        assert fraction / 2 <= len(validation) / corpus.num_bytes <= 2 * fraction
    else:
        assert parts.held_out[0] == parts.cut_file
        assert held_out.endswith(validation)
        assert train.endswith(held_out[: len(held_out) - len(validation)])
        assert abs(len(validation) - fraction * corpus.num_bytes) <= 0.5
    rest = set(texts) - set(parts.held_out)
    assert all(texts[name] in train for name in rest)


@given(SIZES)
def test_the_split_does_not_depend_on_the_order_of_the_files(sizes: list[int]) -> None:
    corpus, texts = make(sizes)
    backwards = Corpus.from_files("made", reversed(list(texts.items())))
    one, other = split(corpus, 0.2), split(backwards, 0.2)
    assert one.held_out == other.held_out
    assert np.array_equal(one.validation, other.validation)
    assert np.array_equal(one.train, other.train)


def test_many_small_files_are_never_cut_and_one_file_always_is() -> None:
    assert split(make([100] * 40)[0], 0.1).cut_file is None
    alone = split(make([1000])[0], 0.1)
    assert (alone.cut_file, len(alone.validation)) == ("f0", 100)


@pytest.mark.parametrize("fraction", [0.0, -0.1, 0.51, 1.0, float("nan")])
def test_a_fraction_out_of_range_is_an_error(fraction: float) -> None:
    with pytest.raises(InputError, match=f"validation_fraction={fraction} is outside"):
        split(make([100])[0], fraction)
