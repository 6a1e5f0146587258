"""Tokenizers: what is encoded comes back, the same file from the same text, and broken files."""

from __future__ import annotations

import builtins
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp4lab.data.tokenizer import BOUNDARY, ByteTokenizer, FileTokenizer, train_bpe
from fp4lab.errors import InputError
from tests.data.texts import AWKWARD, words

library = pytest.importorskip("tokenizers", reason="trains a BPE, which needs the extra data")


@pytest.fixture(scope="module")
def bpe() -> bytes:
    return train_bpe([words(0, 2000).encode()], 400)


@pytest.fixture(scope="module")
def tokenizer(bpe: bytes) -> FileTokenizer:
    return FileTokenizer(bpe, where="made")


@given(st.binary())
def test_bytes_are_their_own_tokens(text: bytes) -> None:
    (tokens,) = ByteTokenizer().encode([text])
    assert tokens.tobytes() == text
    assert ByteTokenizer().decode(tokens.tolist()) == text.decode("utf-8", "replace")


@given(st.text())
def test_a_bpe_loses_nothing(tokenizer: FileTokenizer, text: str) -> None:
    (tokens,) = tokenizer.encode([text.encode()])
    assert tokenizer.decode(tokens.tolist()) == text
    assert tokenizer.boundary not in tokens


def test_a_bpe_knows_every_byte_and_has_the_size_asked_for(tokenizer: FileTokenizer) -> None:
    assert (tokenizer.vocab_size, tokenizer.boundary) == (400, 0)
    assert tokenizer.boundary_text == BOUNDARY
    tokens = tokenizer.encode([words(0, 500).encode()])[0]
    assert len(tokens) < len(words(0, 500).encode()) / 2
    assert max(tokens) < 400


@pytest.mark.slow
def test_the_same_text_gives_the_same_file_with_any_number_of_threads(bpe: bytes) -> None:
    code = (
        "import sys; from fp4lab.data.tokenizer import train_bpe; "
        "from tests.data.texts import words; "
        "sys.stdout.buffer.write(train_bpe([words(0, 2000).encode()], 400))"
    )
    for threads in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": ":".join(sys.path), "RAYON_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        )
        assert done.stdout == bpe


def test_the_library_itself_agrees(bpe: bytes, tokenizer: FileTokenizer) -> None:
    theirs = library.Tokenizer.from_str(bpe.decode())
    text = words(5, 300).replace(BOUNDARY, "")
    assert tokenizer.encode([text.encode()])[0].tolist() == theirs.encode(text).ids


def test_truncation_and_padding_of_a_file_are_left_out(bpe: bytes) -> None:
    changed = library.Tokenizer.from_str(bpe.decode())
    changed.enable_truncation(5)
    changed.enable_padding(length=50)
    found = FileTokenizer(changed.to_str().encode(), where="made")
    texts = [AWKWARD.encode(), b"a"]
    plain = FileTokenizer(bpe, where="made").encode(texts)
    for one, other in zip(found.encode(texts), plain, strict=True):
        assert np.array_equal(one, other)


def with_boundary(token: str) -> bytes:
    made = library.Tokenizer(library.models.WordLevel({"a": 0, token: 7}, unk_token="a"))
    text: str = made.to_str()
    return text.encode()


def test_a_boundary_is_found_or_named_or_refused() -> None:
    found = FileTokenizer(with_boundary("</s>"), where="made")
    assert (found.boundary_text, found.boundary, found.vocab_size) == ("</s>", 7, 8)
    assert FileTokenizer(with_boundary("end"), where="made").boundary is None
    assert FileTokenizer(with_boundary("end"), where="made", boundary="end").boundary == 7
    with pytest.raises(InputError, match="boundary='stop' is not in the vocabulary of made; give"):
        FileTokenizer(with_boundary("end"), where="made", boundary="stop")


def large(bpe: bytes) -> bytes:
    """A token beyond uint32."""
    table: dict[str, Any] = json.loads(bpe)
    table["model"]["vocab"][next(reversed(table["model"]["vocab"]))] = 2**32
    return json.dumps(table).encode()


@pytest.mark.parametrize("name", ["cut", "empty", "object", "bytes", "large"])
def test_a_broken_file_is_one_line(name: str, bpe: bytes, tmp_path: Path) -> None:
    damaged = {
        "cut": bpe[:500], "empty": b"", "object": b"{}", "bytes": b"\xff\xfe", "large": large(bpe),
    }  # fmt: skip
    path = tmp_path / "tokenizer.json"
    path.write_bytes(damaged[name])
    with pytest.raises(InputError, match=r"is no tokenizer that tokenizers .* reads: ") as caught:
        FileTokenizer.read(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_missing_library_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"tokenizer=.*absent is no file; give 'bytes', 'bpe' or"):
        FileTokenizer.read(tmp_path / "absent")

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        InputError, match=r"^tokenizer='bpe' needs the package tokenizers; add it: pip install to"
    ):
        train_bpe([b"a"], 300)


def test_bytes_need_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        assert not name.startswith("tokenizers")
        return taken(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert ByteTokenizer().decode(ByteTokenizer().encode([b"abc"])[0].tolist()) == "abc"
