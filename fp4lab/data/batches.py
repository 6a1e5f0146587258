"""Batches of tokens, each a pure function of (seed, index).

An epoch cuts the training tokens into windows of `sequence_length` targets that do not overlap,
beginning at an offset drawn for that epoch, and shows every window once in an order drawn for that
epoch. So a run that resumes at step n, or a rank that takes every r-th batch, needs no state, and
windows of different epochs are cut at different places.

Draws come from the raw stream of numpy's Philox, keyed by (seed, epoch): raw streams are promised
to be the same on every platform and in every release, the shuffles of `numpy.random.Generator` are
not. A window may run from the end of one file into the next.

Shape letters: B batch, T position.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fp4lab.data.corpus import Bytes, Corpus, Split, split
from fp4lab.data.shards import MappedSplit, MappedTokens, Shards
from fp4lab.data.tokenizer import Tokens
from fp4lab.errors import InputError

Batch = tuple[Tensor, Tensor]
Indices = npt.NDArray[np.int64]

HELD_OUT = 0.05
"""The part of a text that is held out by default."""
VALIDATION_TOKENS = 49_152
"""How many tokens `TokenBatches.validation` gives by default."""


class TokenBatches:
    """Training and validation batches of one text, as (tokens_BT, targets_BT) int64 pairs.

    `targets_BT[b, t]` is the token that follows `tokens_BT[b, t]`; tokens of a corpus are its
    bytes. About `validation_fraction` of the bytes are held out, by whole files where possible:
    attribute `split` says which, function `split` how. Shards have their own held-out part, which
    the default takes. `windows_per_epoch` windows make one pass over the training tokens, and there
    are `validation_windows` held-out ones. Of shards only what a batch needs is read; the order of
    an epoch takes 8 bytes a window.

    Raises `InputError` if either part is too small for the sequence length and the batch size, and
    for another fraction than that of the shards.

    >>> corpus = Corpus.from_files("numbers", [("a.txt", bytes(range(250)))])
    >>> data = TokenBatches(corpus, sequence_length=8, batch_size=2)
    >>> tokens, targets = data.train(0)
    >>> tokens.shape, bool((targets == tokens + 1).all())
    (torch.Size([2, 8]), True)
    """

    def __init__(
        self,
        corpus: Corpus | Shards,
        *,
        sequence_length: int,
        batch_size: int,
        seed: int = 0,
        validation_fraction: float = HELD_OUT,
    ) -> None:
        for argument, value in (("sequence_length", sequence_length), ("batch_size", batch_size)):
            if value < 1:
                raise InputError(f"{argument}={value!r} is below 1; give 1 or more")
        if not 0 <= seed < 2**64:
            raise InputError(f"seed={seed!r} is no 64-bit number; give one from 0 to 2^64 - 1")
        self.corpus = corpus
        self.sequence_length = sequence_length
        self.batch_size = batch_size
        self.seed = seed
        self.split = _split(corpus, validation_fraction)
        self.tokens_per_byte = 1.0 if isinstance(corpus, Corpus) else corpus.tokens_per_byte
        # One window fewer than fit at offset 0: that many fit at every offset.
        self.windows_per_epoch = len(self.split.train) // sequence_length - 1
        self.validation_windows = (len(self.split.validation) - 1) // sequence_length
        if self.windows_per_epoch < batch_size or self.validation_windows < 1:
            raise InputError(
                f"corpus {corpus.name!r} is too small: its {len(self.split.train)} training and "
                f"{len(self.split.validation)} held-out tokens must hold {batch_size + 1} and 1 "
                f"windows of sequence_length={sequence_length}; give more text or lower "
                "sequence_length or batch_size"
            )

    def train(self, index: int) -> Batch:
        """Batch number `index`; a batch at the end of an epoch goes on into the next one."""
        if index < 0:
            raise InputError(f"index={index} is below 0; batches count from 0")
        samples = range(index * self.batch_size, (index + 1) * self.batch_size)
        starts = np.array([self._start(sample) for sample in samples])
        return self._windows(self.split.train, starts)

    def _start(self, sample: int) -> int:
        epoch, place = divmod(sample, self.windows_per_epoch)
        draws = _epoch(self.seed, epoch, self.windows_per_epoch, self.sequence_length)
        return int(draws[place])

    def validation(self, num_windows: int | None = None) -> list[Batch]:
        """The same batches at every call: windows spread evenly over the held-out tokens.

        They do not overlap. By default as many as make 49,152 tokens or, if there are fewer, as
        there are; a number is exact, and an `InputError` if it is more than there are. All batches
        are equally large, so that the mean over batches is the mean over tokens: a number of
        windows above `batch_size` is rounded down to a multiple of it.
        """
        available = self.validation_windows
        if num_windows is None:
            num_windows = min(available, max(1, VALIDATION_TOKENS // self.sequence_length))
        if not 1 <= num_windows <= available:
            raise InputError(
                f"num_windows={num_windows} must be 1 to {available}, the windows of "
                f"{self.sequence_length} that the {len(self.split.validation)} held-out tokens hold"
            )
        if num_windows > self.batch_size:
            num_windows -= num_windows % self.batch_size
        starts = spread(num_windows, len(self.split.validation), self.sequence_length)
        rows = range(0, num_windows, self.batch_size)
        return [
            self._windows(self.split.validation, starts[row : row + self.batch_size])
            for row in rows
        ]

    def _windows(self, data: Bytes | MappedTokens, starts: Indices) -> Batch:
        return windows(data, starts, self.sequence_length)


def windows(data: Tokens | MappedTokens, starts: Indices, length: int) -> Batch:
    """(tokens_BT, targets_BT) of the windows that begin at `starts`."""
    window = data[starts[:, None] + np.arange(length + 1)]
    tokens = torch.from_numpy(window.astype(np.int64))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def spread(num_windows: int, num_tokens: int, length: int) -> Indices:
    """Where windows begin that are spread evenly, from the first token to the last."""
    last = num_tokens - 1 - length
    starts: Indices = np.arange(num_windows) * last // max(1, num_windows - 1)
    return starts


def _split(text: Corpus | Shards, fraction: float) -> Split | MappedSplit:
    if isinstance(text, Corpus):
        return split(text, fraction)
    theirs = text.index.plan.validation_fraction
    if fraction not in {HELD_OUT, theirs}:
        raise InputError(
            f"validation_fraction={fraction} is not that of the shards in {text.folder}, {theirs}, "
            "which they were prepared with; leave it out, or prepare others"
        )
    return text.split()


@lru_cache(maxsize=4)
def _epoch(seed: int, epoch: int, windows: int, length: int) -> Indices:
    """The first token of every window of an epoch, in the order of that epoch."""
    raw = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(windows + 1)
    offset = int(raw[0] % np.uint64(length))
    order = np.argsort(raw[1:], kind="stable")
    starts: Indices = offset + order * length
    return starts


def bits_per_byte(nats_per_token: float, tokens_per_byte: float = 1.0) -> float:
    """Turn a mean loss in nats per token into bits per byte: `nats / ln 2 * tokens_per_byte`.

    >>> bits_per_byte(math.log(256))
    8.0
    """
    return nats_per_token / math.log(2) * tokens_per_byte
