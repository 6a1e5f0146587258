"""Text as bytes: what was read, and which of it is held out.

A byte is a token, so no tokenizer stands between a text and its loss: bits per byte compare across
models and vocabularies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fp4lab.errors import InputError

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class TextFile:
    """One file of a corpus: its name there, its size and the SHA-256 (hex) of its bytes.

    >>> Corpus.from_files("one", [("a.txt", b"abc")]).files[0]
    TextFile(name='a.txt', num_bytes=3, sha256='ba7816bf...')
    """

    name: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, eq=False)
class Corpus:
    """The bytes of some files, one after the other, as a read-only uint8 array.

    Make one with `Corpus.from_files`, or with `load`.

    >>> Corpus.from_files("two", [("a.txt", b"ab"), ("b.txt", b"c")]).data
    array([97, 98, 99], dtype=uint8)
    """

    name: str
    data: Bytes
    files: tuple[TextFile, ...]

    @classmethod
    def from_files(cls, name: str, files: Iterable[tuple[str, bytes]]) -> Corpus:
        """Join (name, bytes) pairs in their order; the bytes are taken as they are.

        Empty files are left out, and so is an exact copy of an earlier file: it could stand in the
        training part and the held-out part at once. `InputError` if no byte remains.

        >>> Corpus.from_files("two", [("a.txt", b"ab"), ("b.txt", b"c"), ("copy.txt", b"c")])
        Corpus(name='two', num_bytes=3, files=2)
        """
        texts: dict[str, bytes] = {}
        kept: list[TextFile] = []
        for file_name, text in files:
            digest = hashlib.sha256(text).hexdigest()
            if text and digest not in texts:
                texts[digest] = text
                kept.append(TextFile(file_name, len(text), digest))
        if not kept:
            raise InputError(f"corpus {name!r} holds no text; name a source with a non-empty file")
        # frombuffer over bytes is read-only, which is what a corpus should be.
        return cls(name, np.frombuffer(b"".join(texts.values()), np.uint8), tuple(kept))

    @property
    def num_bytes(self) -> int:
        """The size of the text."""
        return len(self.data)

    @property
    def sha256(self) -> str:
        """The hash of all files' hashes and names, as `sha256sum FILE... | sha256sum` prints it."""
        lines = "".join(f"{file.sha256}  {file.name}\n" for file in self.files)
        return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()

    def __repr__(self) -> str:
        return f"Corpus(name={self.name!r}, num_bytes={self.num_bytes}, files={len(self.files)})"


@dataclass(frozen=True, eq=False)
class Split:
    """A corpus in two parts without a common byte; `held_out` names the files of `validation`.

    `cut_file` is the one file that begins in `train` and ends in `validation`, if there is one.

    >>> corpus = Corpus.from_files("one", [("a.txt", bytes(100))])
    >>> parts = split(corpus, 0.05)
    >>> len(parts.train), len(parts.validation), parts.cut_file
    (95, 5, 'a.txt')
    """

    train: Bytes
    validation: Bytes
    held_out: tuple[str, ...]
    cut_file: str | None


def split(corpus: Corpus, fraction: float) -> Split:
    """Hold out about `fraction` of the bytes, by whole files where the files allow it.

    `Cut` says how; its errors are those of this.

    >>> files = [("a.txt", b"a" * 90), ("b.txt", b"b" * 10)]
    >>> split(Corpus.from_files("two", files), 0.1).held_out
    ('b.txt',)
    """
    cut = Cut.of(corpus.files, fraction)
    ends = dict(
        zip(corpus.files, np.cumsum([file.num_bytes for file in corpus.files]), strict=True)
    )
    data = np.concatenate(
        [corpus.data[ends[file] - file.num_bytes : ends[file]] for file in cut.files]
    )
    data.flags.writeable = False
    return Split(data[: cut.border], data[cut.border :], cut.held_out, cut.cut_file)


def check_fraction(fraction: float) -> None:
    """InputError unless so much of a text can be held out."""
    if not 0 < fraction <= 0.5:
        raise InputError(
            f"validation_fraction={fraction!r} is outside (0, 0.5]; give a part such as 0.05"
        )


@dataclass(frozen=True)
class Cut:
    """The files of a text in the order of the split, and the byte where the held-out part begins.

    The order is that of the SHA-256 of the names, an arbitrary order that depends on nothing else,
    and the last files are held out. The border moves to the nearest edge between two files if that
    leaves between half and twice the fraction; then no file is in both parts. Otherwise (a single
    file, a few large ones) one file is cut, its end is held out, and `cut_file` says so: its two
    parts share their style and their subject, which makes the held-out loss look better than it is.
    """

    files: tuple[TextFile, ...]
    border: int

    @classmethod
    def of(cls, files: Sequence[TextFile], fraction: float) -> Cut:
        """Where to cut; `InputError` unless 0 < fraction <= 0.5."""
        check_fraction(fraction)
        ordered = tuple(sorted(files, key=_name_hash))
        starts, total = _starts(ordered), sum(file.num_bytes for file in ordered)
        border = total - round(total * fraction)
        edge = int(starts[np.argmin(np.abs(starts - border))])
        if fraction / 2 <= 1 - edge / total <= min(2 * fraction, 0.5):
            border = edge
        return cls(ordered, border)

    @property
    def first(self) -> int:
        """Index of the first file that begins in the held-out part."""
        return int(np.searchsorted(_starts(self.files), self.border))

    @property
    def cut_file(self) -> str | None:
        """The file that begins in the training part and ends in the held-out one, if one does."""
        first, starts = self.first, _starts(self.files)
        whole = first < len(starts) and starts[first] == self.border
        return None if whole else self.files[first - 1].name

    @property
    def held_out(self) -> tuple[str, ...]:
        """Names of the files of the held-out part."""
        names = tuple(file.name for file in self.files[self.first :])
        return names if self.cut_file is None else (self.cut_file, *names)


def _starts(files: Sequence[TextFile]) -> npt.NDArray[np.int64]:
    """The byte at which every file begins."""
    return np.cumsum([0] + [file.num_bytes for file in files], dtype=np.int64)[:-1]


def _name_hash(file: TextFile) -> bytes:
    return hashlib.sha256(file.name.encode("utf-8", "surrogateescape")).digest()
