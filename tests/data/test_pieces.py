"""A file in pieces has the tokens of the whole file, whatever the size of the pieces."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fp4lab.data import pieces
from fp4lab.data.corpus import TextFile
from fp4lab.data.pieces import Document, encoded, texts
from fp4lab.data.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer, train_bpe
from fp4lab.errors import InputError
from tests.data.texts import words

library = pytest.importorskip("tokenizers", reason="trains a BPE, which needs the extra data")


@pytest.fixture(scope="module")
def bpe() -> FileTokenizer:
    return FileTokenizer(train_bpe([words(0, 3000).encode()], 500), where="made")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIECE": 600, "LARGEST": 5000, "CONTEXT": 60, "SEARCHED": 400}.items():
        monkeypatch.setattr(pieces, name, value)


def document(path: Path, text: bytes) -> Document:
    path.write_bytes(text)
    file = TextFile(path.name, len(text), hashlib.sha256(text).hexdigest())
    return Document(file, path, 0, len(text))


def split_like_llama3(bpe: FileTokenizer) -> FileTokenizer:
    """The same merges behind the published pattern of Llama 3 and GPT-4."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    made = library.Tokenizer.from_str(bpe.text.decode())
    pre = library.pre_tokenizers
    made.pre_tokenizer = pre.Sequence(
        [
            pre.Split(library.Regex(pattern), behavior="isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return FileTokenizer(made.to_str().encode(), where="made")


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["bytes", "gpt-2", "llama-3"])
@pytest.mark.parametrize("seed", range(4))
def test_pieces_have_the_tokens_of_the_whole(
    kind: str, seed: int, bpe: FileTokenizer, tmp_path: Path
) -> None:
    kinds: dict[str, Tokenizer] = {
        "bytes": ByteTokenizer(), "gpt-2": bpe, "llama-3": split_like_llama3(bpe),
    }  # fmt: skip
    tokenizer, text = kinds[kind], words(seed, 3000).encode()
    (whole,) = tokenizer.encode([text])
    found = list(encoded([document(tmp_path / "a.txt", text)], tokenizer))
    assert len(found) > 20
    assert sum(piece.num_bytes for piece in found) == len(text)
    ends = [] if tokenizer.boundary is None else [tokenizer.boundary]
    together = np.concatenate([piece.tokens for piece in found]).tolist()
    assert together == [*whole.tolist(), *ends]


@pytest.mark.usefixtures("small_pieces")
def test_any_piece_can_be_the_first(bpe: FileTokenizer, tmp_path: Path) -> None:
    documents = [document(tmp_path / f"{i}.txt", words(i, 400).encode()) for i in range(3)]
    whole = list(encoded(documents, bpe))
    for index in range(0, len(whole), 3):
        start = (whole[index].document, whole[index].begin)
        rest = list(encoded(documents, bpe, start=start))
        assert len(rest) == len(whole) - index
        for one, other in zip(rest, whole[index:], strict=True):
            assert (one.document, one.begin) == (other.document, other.begin)
            assert np.array_equal(one.tokens, other.tokens)


@pytest.mark.usefixtures("small_pieces")
def test_a_part_of_a_file_is_read_alone(bpe: FileTokenizer, tmp_path: Path) -> None:
    text = words(3, 500).encode()
    whole = document(tmp_path / "a.txt", text)
    cut = text.index(b" ", 1000)
    for begin, end in ((0, cut), (cut, len(text))):
        part = Document(whole.file, whole.path, begin, end)
        together = np.concatenate([piece.tokens for piece in encoded([part], bpe)])
        assert together[:-1].tolist() == bpe.encode([text[begin:end]])[0].tolist()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("text", [b"x" * 6000, b" " * 6000])
def test_a_text_without_a_place_to_cut_is_refused_by_name(
    text: bytes, bpe: FileTokenizer, tmp_path: Path
) -> None:
    long = document(tmp_path / "long.txt", text)
    with pytest.raises(InputError, match=r"long\.txt cannot be encoded in pieces: .*; divide the"):
        list(encoded([long], bpe))
    assert sum(piece.num_bytes for piece in encoded([long], ByteTokenizer())) == len(text)


@pytest.mark.usefixtures("small_pieces")
def test_a_tokenizer_that_marks_the_beginning_of_a_text_is_refused_for_long_files(
    bpe: FileTokenizer, tmp_path: Path
) -> None:
    """As sentencepiece does: every piece would begin with a mark that the whole has once."""
    made = library.Tokenizer.from_str(bpe.text.decode())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.normalizer = library.normalizers.Prepend("_")
    marking = FileTokenizer(made.to_str().encode(), where="made")
    text = words(0, 2000).encode()
    with pytest.raises(InputError, match="no cut within"):
        list(encoded([document(tmp_path / "long.txt", text)], marking))
    short = document(tmp_path / "short.txt", text[:400])
    (piece,) = encoded([short], marking)
    assert piece.tokens[:-1].tolist() == made.encode(text[:400].decode()).ids


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("at", [0, 2500, -1])
def test_a_file_that_is_not_utf8_is_refused_with_its_byte(
    at: int, bpe: FileTokenizer, tmp_path: Path
) -> None:
    text = bytearray(words(0, 1000).encode())
    at %= len(text)
    text[at] = 0xFF
    bad = document(tmp_path / "bad.txt", bytes(text))
    good = document(tmp_path / "good.txt", b"good")
    for use in (
        lambda: list(encoded([good, bad], bpe)),
        lambda: list(texts([bad], limit=10**6)),
    ):
        with pytest.raises(
            InputError, match=r"bad\.txt is not UTF-8 text \(byte (\d+)\); "
        ) as told:
            use()
        told_at = int(str(told.value).split("byte ")[1].split(")")[0])
        # Within a character the decoder names its first byte.
        assert at - 3 <= told_at <= at
    tokens = np.concatenate([piece.tokens for piece in encoded([bad], ByteTokenizer())])
    assert tokens.tobytes() == bytes(text)


@pytest.mark.parametrize("change", ["longer", "shorter", "other"])
def test_a_file_that_changes_while_it_is_read_is_named(
    change: str, bpe: FileTokenizer, tmp_path: Path
) -> None:
    text = words(0, 50).encode()
    known = document(tmp_path / "a.txt", text)
    changed = {"longer": text + b"x", "shorter": text[:-1], "other": text[:-1] + b"\0"}
    known.path.write_bytes(changed[change])
    tokenizers: list[Any] = [bpe, ByteTokenizer()]
    for tokenizer in tokenizers:
        with pytest.raises(InputError, match=r"a\.txt has changed since it was first read; give"):
            list(encoded([known], tokenizer))


def test_training_text_has_a_limit(tmp_path: Path) -> None:
    documents = [document(tmp_path / f"{i}.txt", b"word " * 100) for i in range(10)]
    assert len(list(texts(documents, limit=1200))) == 3
