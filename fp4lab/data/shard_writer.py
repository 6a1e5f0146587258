"""Writing the shards of one part of a text, so that a killed process is gone on with.

A shard is written into a hidden file, synced and renamed; then shards-progress.json says that it is
there, and where in the text the next one begins. What was written of a shard before a death is
written again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fp4lab.data.pieces import Encoded
from fp4lab.data.shards import DType, Shard
from fp4lab.data.tokenizer import Tokens
from fp4lab.specs.files import beside, naming, put, read_record, write_json

PROGRESS = "shards-progress.json"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where in a part the next shard begins."""

    document: int = 0
    #: of the file, where a piece begins
    byte: int = 0
    #: of that piece, in earlier shards
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What shards-progress.json holds: the shards that are there, and where the next ones begin."""

    train: tuple[Shard, ...] = ()
    validation: tuple[Shard, ...] = ()
    train_at: Place = field(default_factory=Place)
    validation_at: Place = field(default_factory=Place)

    @classmethod
    def read(cls, folder: Path) -> Progress:
        """What is there; nothing if there is no file."""
        path = folder / PROGRESS
        if not path.is_file():
            return cls()
        return read_record(path, cls, cure="delete it, and all shards are written again")


class PartWriter:
    """Writes the shards of one part from where shards-progress.json says; `start` is that place."""

    def __init__(self, folder: Path, name: str, dtype: DType, *, shard_tokens: int) -> None:
        self._folder, self._name, self._limit = folder, name, shard_tokens
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._state = Progress.read(folder)
        self.shards: list[Shard] = list(getattr(self._state, name))
        self.start: Place = getattr(self._state, f"{name}_at")
        self._skip = self.start.tokens
        self._file: _ShardFile | None = None

    def add(self, piece: Encoded) -> None:
        """Write the tokens of a piece, but those that earlier shards hold."""
        used, self._skip = self._skip, 0
        while used < len(piece.tokens):
            if self._file is None:
                name = f"{self._name}-{len(self.shards):05d}.bin"
                self._file = _ShardFile(self._folder / name)
            some = piece.tokens[used : used + self._limit - self._file.num_tokens]
            self._file.write(some.astype(self._dtype))
            used += len(some)
            if self._file.num_tokens == self._limit:
                self._finish(Place(document=piece.document, byte=piece.begin, tokens=used))

    def end(self, documents: int) -> None:
        """Finish the last shard."""
        self._finish(Place(document=documents))

    def discard(self) -> None:
        """Delete what is not finished."""
        if self._file is not None:
            self._file.discard()

    def _finish(self, at: Place) -> None:
        if self._file is not None:
            self.shards.append(self._file.finish())
            self._file = None
        there = {self._name: tuple(self.shards), f"{self._name}_at": at}
        now = dataclasses.replace(self._state, **there)  # type: ignore[arg-type]
        write_json(self._folder / PROGRESS, dataclasses.asdict(now))


class _ShardFile:
    """One shard that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hash = hashlib.sha256()
        self.num_tokens = 0
        self._file = beside(path).open("wb")

    def write(self, tokens: Tokens) -> None:
        data = tokens.tobytes()
        with naming(self._path):
            self._file.write(data)
        self._hash.update(data)
        self.num_tokens += len(tokens)

    def finish(self) -> Shard:
        with naming(self._path):
            self._file.close()
        put(self._path)
        return Shard(
            name=self._path.name, num_tokens=self.num_tokens, sha256=self._hash.hexdigest()
        )

    def discard(self) -> None:
        # Closing writes what is left, which a full disk does not take.
        with contextlib.suppress(OSError):
            self._file.close()
        beside(self._path).unlink(missing_ok=True)
