"""A text that a model was not trained on, in windows that cover all of it.

Every token but the first is predicted once, from those before it in its window; the last window may
be shorter, so the loss is the mean over tokens, not over batches. Bits per byte are that mean times
tokens over bytes of the text. A text is held in memory as tokens; of shards, the held-out part is
read where it is asked for.

Shape letters: B batch, T position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from fp4lab.data import Shards, is_shards
from fp4lab.data.batches import Batch, spread, windows
from fp4lab.data.pieces import Document, encoded
from fp4lab.data.scan import scan
from fp4lab.data.shards import MappedTokens, token_dtype
from fp4lab.data.sources import find
from fp4lab.data.tokenizer import Tokenizer, Tokens
from fp4lab.errors import InputError
from fp4lab.train.forward import Forward
from fp4lab.train.task import to_device

#: called with the targets done since the last call
Advance = Callable[[int], None]


@dataclass(frozen=True)
class OtherText:
    """Tokens of a text, and its size."""

    name: str
    tokens: Tokens | MappedTokens
    num_bytes: int

    @classmethod
    def read(cls, source: str, tokenizer: Tokenizer) -> OtherText:
        """A folder, a file, "stdlib", or the held-out part of shards.

        Raises InputError for no text, for a file that the tokenizer cannot take and for shards of
        another tokenizer.
        """
        text = cls._mapped(source, tokenizer) if is_shards(source) else cls._held(source, tokenizer)
        if len(text.tokens) < 2:
            count = f"{len(text.tokens)} token" + "s" * (len(text.tokens) != 1)
            raise InputError(f"data={source} has {count}; give text of two or more")
        return text

    @classmethod
    def _held(cls, source: str, tokenizer: Tokenizer) -> OtherText:
        found = find(source)
        paths, files = dict(found.files), scan(found, is_text=tokenizer.sha256 is not None)
        documents = [Document(file, paths[file.name], 0, file.num_bytes) for file in files]
        dtype = token_dtype(tokenizer.vocab_size)
        pieces = [piece.tokens.astype(dtype) for piece in encoded(documents, tokenizer)]
        return cls(source, np.concatenate(pieces), sum(file.num_bytes for file in files))

    @classmethod
    def _mapped(cls, source: str, tokenizer: Tokenizer) -> OtherText:
        shards = Shards.open(source)
        theirs = shards.index.vocabulary.sha256
        if theirs != tokenizer.sha256:
            raise InputError(
                f"data={shards.folder} was made by another tokenizer ({_short(theirs)}) than that "
                f"of the run ({_short(tokenizer.sha256)}); give the text itself"
            )
        return cls(shards.name, shards.split().validation, shards.index.validation.num_bytes)

    @property
    def tokens_per_byte(self) -> float:
        """Over the whole text."""
        return len(self.tokens) / self.num_bytes

    def starts(
        self, length: int, num_windows: int | None
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Where the whole windows begin: all of them, or so many spread evenly."""
        whole = (len(self.tokens) - 1) // length
        if num_windows is None:
            return np.arange(whole) * length
        if not 1 <= num_windows <= whole:
            raise InputError(
                f"windows={num_windows} must be 1 to {whole}, the windows of {length} tokens that "
                "the text holds; give so many, or none for the whole text"
            )
        return spread(num_windows, len(self.tokens), length)

    def batches(self, length: int, size: int, num_windows: int | None) -> Iterator[Batch]:
        """The windows in groups of `size`, then what is left at the end as a shorter one."""
        starts = self.starts(length, num_windows)
        rows = range(0, len(starts), size)
        whole = (windows(self.tokens, starts[row : row + size], length) for row in rows)
        rest = (len(self.tokens) - 1) % length if num_windows is None else 0
        at = np.array([len(self.tokens) - 1 - rest])
        return chain(whole, (windows(self.tokens, at, n) for n in [rest] if n))


@torch.no_grad()
def mean_loss(
    forward: Forward, updates: int, batches: Iterator[Batch], advance: Advance
) -> tuple[float, int]:
    """The mean loss over all targets of the batches, and how many these are.

    Raises NonFiniteError where a loss is not finite.
    """
    step, losses, counts = max(0, updates - 1), [], []
    forward.model.eval()
    try:
        for index, batch in enumerate(batches):
            on_device = to_device(batch, forward.world.device)
            loss, count = float(forward.loss(step, index, on_device)), batch[1].numel()
            if not math.isfinite(loss):
                raise forward.nonfinite(index, updates, on_device)
            losses.append(loss * count)
            counts.append(count)
            advance(count)
    finally:
        forward.model.train()
    return math.fsum(losses) / sum(counts), sum(counts)


def _short(sha256: str | None) -> str:
    return "bytes" if sha256 is None else f"sha256 {sha256[:12]}"
