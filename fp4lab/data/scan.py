"""Size and hash of the files of a text, read in little memory."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path

from fp4lab.data.corpus import TextFile
from fp4lab.data.sources import Source
from fp4lab.errors import InputError
from fp4lab.progress import Advance, shown

CHUNK = 1 << 20


def scan(found: Source, *, is_text: bool) -> list[TextFile]:
    """All files but empty ones and copies of others, as in `Corpus.from_files`.

    Raises InputError if nothing is left, or with the name of a file that `is_text` but not UTF-8.
    """
    kept: dict[str, TextFile] = {}
    sizes = [path.stat().st_size for _, path in found.files]
    with shown("reading", sum(sizes)) as advance:
        for name, path in found.files:
            chunks = _chunks(path, advance)
            size, digest = _measured(_checked(chunks, path) if is_text else chunks)
            if size:
                kept.setdefault(digest, TextFile(name, size, digest))
    if not kept:
        raise InputError(f"source={found.name!r} holds no text; name one with a non-empty file")
    return list(kept.values())


def not_utf8(path: Path, byte: int) -> InputError:
    """The error for a file that a tokenizer cannot take."""
    return InputError(
        f"{path} is not UTF-8 text (byte {byte}); convert it or leave it out, or use "
        "tokenizer='bytes', which takes anything"
    )


def _chunks(path: Path, advance: Advance) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
            advance(len(chunk))


def _measured(chunks: Iterator[bytes]) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    for chunk in chunks:
        size += len(chunk)
        digest.update(chunk)
    return size, digest.hexdigest()


def _checked(chunks: Iterator[bytes], path: Path) -> Iterator[bytes]:
    decoder, done = codecs.getincrementaldecoder("utf-8")(), 0
    for chunk in chunks:
        held = len(decoder.getstate()[0])  # the beginning of a character
        try:
            decoder.decode(chunk)
        except UnicodeDecodeError as error:
            raise not_utf8(path, done - held + error.start) from None
        done += len(chunk)
        yield chunk
    if held := len(decoder.getstate()[0]):
        raise not_utf8(path, done - held)
