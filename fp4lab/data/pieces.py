"""A file in pieces that give the same tokens as the whole of it.

So a file of any size is encoded in little memory. Bytes can be cut anywhere. A tokenizer splits a
text into words before it merges anything; a cut in front of white space that follows something else
is between two words for most of them, and whether it is for the tokenizer in use is tried on the
text around each cut. Where no such place is found in `LARGEST` bytes the file is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fp4lab.data.corpus import TextFile
from fp4lab.data.scan import not_utf8
from fp4lab.data.tokenizer import ByteTokenizer, Tokenizer, Tokens
from fp4lab.errors import InputError

PIECE = 1 << 18
LARGEST = 1 << 24
#: text on both sides of a cut for which it is tried, and the part of a piece that is searched
CONTEXT, SEARCHED = 512, 1 << 16
#: text that is handed to the tokenizer at once, so that its threads have something to share
BATCH = 1 << 21
BATCH_FILES = 1000

CutPlace = Callable[[bytes], int | None]


@dataclass(frozen=True)
class Document:
    """A file, or the part of one that is on this side of the border."""

    file: TextFile
    path: Path
    begin: int
    end: int


@dataclass(frozen=True)
class Encoded:
    """The tokens of one piece, and where it lies."""

    document: int
    begin: int
    num_bytes: int
    tokens: Tokens


def encoded(
    documents: list[Document], tokenizer: Tokenizer, *, start: tuple[int, int] = (0, 0)
) -> Iterator[Encoded]:
    """The tokens of documents, piece by piece, each document with its boundary at the end.

    `start` is a document and the byte of it to go on from, the beginning of a piece. Raises
    InputError with the name of a file that has changed or that the tokenizer cannot take.
    """
    batch: list[tuple[int, int, bytes]] = []
    size = 0
    for entry in _all_pieces(documents, tokenizer, start):
        batch.append(entry)
        size += len(entry[2])
        if size >= BATCH or len(batch) >= BATCH_FILES:
            yield from _encode(batch, documents, tokenizer)
            batch, size = [], 0
    yield from _encode(batch, documents, tokenizer)


def texts(documents: list[Document], *, limit: int) -> Iterator[bytes]:
    """The text of documents in pieces, up to about `limit` bytes, for training a tokenizer."""
    for document in documents:
        for begin, text in pieces(document, _before_space):
            if limit <= 0:
                return
            limit -= len(text)
            _check_utf8(document, begin, text)
            yield text


def pieces(document: Document, cut: CutPlace, *, begin: int = 0) -> Iterator[tuple[int, bytes]]:
    """(position in the file, bytes) of all pieces from byte `begin` of the file on.

    `cut` gives the length of the first piece of a text, None if it finds no place for a cut.
    """
    place = max(begin, document.begin)
    digest = hashlib.sha256()
    with document.path.open("rb") as file:
        file.seek(place)
        held = b""
        while place < document.end:
            wanted, length = min(PIECE, document.end - place), None
            while length is None:
                new = file.read(wanted - len(held))
                digest.update(new)
                held += new
                if len(held) < wanted:
                    raise _changed(document)
                length = wanted if place + wanted == document.end else cut(held)
                if length is None and wanted >= LARGEST:
                    raise InputError(
                        f"{document.path} cannot be encoded in pieces: near byte {place + wanted} "
                        f"no cut within {LARGEST >> 20} MiB leaves the tokens as they are; "
                        "divide the file, or use tokenizer='bytes'"
                    )
                wanted = min(2 * wanted, LARGEST, document.end - place)
            yield place, held[:length]
            place, held = place + length, held[length:]
        whole = max(begin, document.begin) == 0 and document.end == document.file.num_bytes
        if whole and (file.read(1) or digest.hexdigest() != document.file.sha256):
            raise _changed(document)


def cuts(tokenizer: Tokenizer) -> CutPlace:
    """Where a text may be cut so that its tokens stay what they are."""
    if isinstance(tokenizer, ByteTokenizer):
        return len

    def place(text: bytes) -> int | None:
        return next((at for at in _candidates(text) if _is_neutral(text, at, tokenizer)), None)

    return place


def _before_space(text: bytes) -> int | None:
    return next(_candidates(text), None)


def _candidates(text: bytes) -> Iterator[int]:
    """Places in front of white space that follows something else, the last first."""
    begin, stop = max(0, len(text) - SEARCHED), max(0, len(text) - CONTEXT)
    found = [match.end() for match in re.finditer(rb"[^ \t\r\n](?=[ \t\r\n])", text[begin:stop])]
    return (begin + at for at in reversed(found))


def _is_neutral(text: bytes, at: int, tokenizer: Tokenizer) -> bool:
    sides = (text[max(0, at - CONTEXT) : at], text[at : at + CONTEXT])
    # The outer ends may cut a character, and so does text that is not UTF-8, which is told later.
    left, right = (side.decode("utf-8", "ignore").encode() for side in sides)
    both, *apart = tokenizer.encode([left + right, left, right])
    return np.array_equal(both, np.concatenate(apart))


def _all_pieces(
    documents: list[Document], tokenizer: Tokenizer, start: tuple[int, int]
) -> Iterator[tuple[int, int, bytes]]:
    cut = cuts(tokenizer)
    first, begin = start
    for index in range(first, len(documents)):
        for place, text in pieces(documents[index], cut, begin=begin if index == first else 0):
            yield index, place, text


def _encode(
    batch: list[tuple[int, int, bytes]], documents: list[Document], tokenizer: Tokenizer
) -> Iterator[Encoded]:
    try:
        tokens = tokenizer.encode([text for _, _, text in batch])
    except UnicodeDecodeError:
        for index, begin, text in batch:
            _check_utf8(documents[index], begin, text)
        raise
    for (index, begin, text), ids in zip(batch, tokens, strict=True):
        is_last = begin + len(text) == documents[index].end
        if is_last and tokenizer.boundary is not None:
            ids = np.append(ids, np.array([tokenizer.boundary], ids.dtype))  # noqa: PLW2901
        yield Encoded(index, begin, len(text), ids)


def _check_utf8(document: Document, begin: int, text: bytes) -> None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(document.path, begin + error.start) from None


def _changed(document: Document) -> InputError:
    return InputError(
        f"{document.path} has changed since it was first read; give the command again with "
        "another folder for --out"
    )
