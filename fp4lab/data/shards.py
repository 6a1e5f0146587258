"""Tokens on disk, mapped into memory: a folder that `fp4lab data prepare` made.

    shards.json                     what it holds, see `Index`; written last, so it is whole with it
    tokenizer.json                  unless tokens are bytes
    train-00000.bin, ...            nothing but tokens, as little-endian uint8, uint16 or uint32
    validation-00000.bin, ...

One file after the other, in an order by the hash of their names, each followed by the tokenizer's
boundary token if it has one; the last ones are held out (`corpus.Cut`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fp4lab.data.corpus import Cut, TextFile
from fp4lab.data.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer, Tokens
from fp4lab.errors import InputError
from fp4lab.specs.files import read_record, sha256

INDEX = "shards.json"
#: what is there as long as the folder is not finished
PLAN = "shards-plan.json"
TOKENIZER = "tokenizer.json"
BYTES = "bytes"
TRAIN, VALIDATION = "train", "validation"
SCHEMA_VERSION = 1
CURE = "prepare the text again, with another folder for --out"

DType = Literal["uint8", "uint16", "uint32"]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of tokens."""

    name: str
    num_tokens: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is trained on, or what is held out."""

    num_bytes: int
    num_tokens: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What decides the bytes of the shards; going on with a folder needs the same."""

    source: str
    #: "bytes", "bpe" (trained here) or "file"
    tokenizer: Literal["bytes", "bpe", "file"]
    #: of the file that was given
    tokenizer_sha256: str | None
    #: that was asked for, of a BPE
    vocab_size: int | None
    #: that was asked for
    boundary: str | None
    validation_fraction: float
    shard_tokens: int
    #: in the order of the tokens
    files: tuple[TextFile, ...]
    #: the byte of all files, one after the other, where the held-out part begins
    border: int

    @property
    def cut(self) -> Cut:
        """The files and the border."""
        return Cut(self.files, self.border)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What the tokens mean."""

    vocab_size: int
    #: SHA-256 of tokenizer.json, None for bytes
    sha256: str | None
    #: the token that follows every document, and its text
    boundary: int | None
    boundary_text: str | None
    dtype: DType


@dataclass(frozen=True, kw_only=True)
class Index:
    """What shards.json holds."""

    plan: Plan
    vocabulary: Vocabulary
    train: Part
    validation: Part
    schema_version: int = SCHEMA_VERSION


def token_dtype(vocab_size: int) -> DType:
    """The smallest type that holds every token.

    >>> token_dtype(65_536), token_dtype(65_537)
    ('uint16', 'uint32')
    """
    if vocab_size <= 2**8:
        return "uint8"
    return "uint16" if vocab_size <= 2**16 else "uint32"


class MappedTokens:
    """The tokens of some shards, one after the other, read from disk where they are asked for."""

    def __init__(self, paths: list[Path], dtype: str) -> None:
        self._maps = [np.memmap(path, np.dtype(dtype).newbyteorder("<"), "r") for path in paths]
        self._ends = np.cumsum([len(each) for each in self._maps], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, places: npt.NDArray[np.int64]) -> Tokens:
        """The tokens at places from 0 on, in the shape of `places`."""
        which = np.searchsorted(self._ends, places, side="right")
        found = np.empty(places.shape, self._maps[0].dtype)
        for index in np.unique(which):
            mine = which == index
            each = self._maps[index]
            found[mine] = each[places[mine] - (self._ends[index] - len(each))]
        return found


@dataclass(frozen=True)
class MappedSplit:
    """The two parts of prepared tokens; `held_out` and `cut_file` as in `corpus.Split`."""

    train: MappedTokens
    validation: MappedTokens
    held_out: tuple[str, ...]
    cut_file: str | None


@dataclass(frozen=True)
class Shards:
    """A folder of prepared tokens, as `prepare` gives and `Shards.open` finds it.

    >>> from fp4lab.data import prepare
    >>> _ = Path("notes.txt").write_bytes(b"Some text. " * 20)
    >>> shards = prepare("notes.txt", "tokens", tokenizer="bytes", validation_fraction=0.1)
    >>> len(shards.split().train), Shards.open("tokens") == shards
    (198, True)
    """

    folder: Path
    index: Index

    @classmethod
    def open(cls, folder: str | Path) -> Shards:
        """The shards in a folder; InputError if it holds none, or one that is cut or missing."""
        root = Path(folder)
        if not (root / INDEX).is_file():
            raise InputError(
                f"shards={root} has no {INDEX}; give a folder that `fp4lab data prepare` has "
                "finished, or give that command again to go on"
            )
        index = read_record(root / INDEX, Index, cure=CURE, version=SCHEMA_VERSION)
        found = cls(root, index)
        width = np.dtype(index.vocabulary.dtype).itemsize
        for shard in found.shards:
            path, size = root / shard.name, shard.num_tokens * width
            if not path.is_file() or path.stat().st_size != size:
                raise InputError(f"{path} is missing or has not {size:,} bytes; {CURE}")
        return found

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All files of tokens."""
        return (*self.index.train.shards, *self.index.validation.shards)

    @property
    def name(self) -> str:
        """The text they were made from."""
        return self.index.plan.source

    @property
    def num_bytes(self) -> int:
        """Bytes of the text."""
        return self.index.train.num_bytes + self.index.validation.num_bytes

    @property
    def tokens_per_byte(self) -> float:
        """Of the held-out text, which is what losses are measured on."""
        held_out = self.index.validation
        return held_out.num_tokens / held_out.num_bytes

    @cached_property
    def sha256(self) -> str:
        """The hash of the tokens and their meaning, wherever they came from."""
        parts = {
            "tokenizer": self.index.vocabulary.sha256,
            TRAIN: [shard.sha256 for shard in self.index.train.shards],
            VALIDATION: [shard.sha256 for shard in self.index.validation.shards],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, from its file; InputError if that is not the one of the index."""
        return read_tokenizer(
            self.folder / TOKENIZER,
            sha256=self.index.vocabulary.sha256,
            boundary=self.index.vocabulary.boundary_text,
        )

    def split(self) -> MappedSplit:
        """The tokens to train on and those held out, read where they are asked for."""
        dtype, cut = self.index.vocabulary.dtype, self.index.plan.cut
        parts = [
            MappedTokens([self.folder / shard.name for shard in part.shards], dtype)
            for part in (self.index.train, self.index.validation)
        ]
        return MappedSplit(parts[0], parts[1], cut.held_out, cut.cut_file)

    def verify(self) -> None:
        """Read everything; InputError for what does not have the checksum it was written with."""
        _ = self.tokenizer
        for shard in self.shards:
            if sha256(self.folder / shard.name) != shard.sha256:
                raise InputError(f"{self.folder / shard.name} has another checksum; {CURE}")

    def identity(self) -> dict[str, Any]:
        """What a run records of its data, as JSON."""
        vocabulary = self.index.vocabulary
        return {
            "name": self.name,
            "num_bytes": self.num_bytes,
            "sha256": self.sha256,
            "num_tokens": self.index.train.num_tokens + self.index.validation.num_tokens,
            "vocab_size": vocabulary.vocab_size,
            "tokenizer_sha256": vocabulary.sha256,
            "boundary": vocabulary.boundary_text,
        }


def is_shards(source: str) -> bool:
    """Whether a source of text is a folder of prepared tokens, finished or not.

    >>> is_shards("stdlib")
    False
    """
    return any((Path(source) / name).is_file() for name in (INDEX, PLAN))


def read_tokenizer(path: Path, *, sha256: str | None, boundary: str | None) -> Tokenizer:
    """The tokenizer of this hash in a file, or bytes where there is no hash."""
    if sha256 is None:
        return ByteTokenizer()
    if not path.is_file():
        raise InputError(f"{path} is missing; restore it from the folder of the shards")
    found = FileTokenizer.read(path, boundary=boundary)
    if found.sha256 != sha256:
        raise InputError(
            f"{path} has sha256 {found.sha256[:12]}, not {sha256[:12]}, with which the tokens were "
            "made; restore it from the folder of the shards"
        )
    return found
