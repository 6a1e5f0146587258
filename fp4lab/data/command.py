"""`fp4lab data prepare`: its options, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from fp4lab.data.prepare import prepare as prepare_shards
from fp4lab.data.shards import Shards
from fp4lab.specs.options import Unset

PREPARED = 0


@dataclass(frozen=True, kw_only=True)
class PrepareArguments:
    """Encode text into shards of tokens that training reads from disk.

    The text may be larger than the memory. The same command goes on after an interruption, to the
    same bytes, and checks a folder that is finished.
    """

    source: Positional[str]
    """"stdlib", Python's own standard library, or the path of a text file or a folder of them."""
    out: Path
    """Folder of the shards."""
    tokenizer: str = "bytes"
    """"bytes", "bpe" to train a byte-level BPE on the first GiB of the text that is not held out,
    or the path of a tokenizer.json."""
    vocab_size: int = 4096
    """Tokens of a BPE, the 256 bytes and <|endoftext|> included; a small text gives fewer."""
    boundary: Unset[str] = None
    """Token that follows every file; by default the first of <|endoftext|>, <|end_of_text|>, </s>
    and <eos> that the vocabulary has. Bytes have none."""
    validation_fraction: float = 0.05
    """Part of the text held out, by whole files where possible."""
    shard_tokens: int = 1 << 26
    """Tokens in a shard."""


def prepare(given: PrepareArguments) -> int:
    """Prepare the shards and print what they are; the exit status."""
    shards = prepare_shards(
        given.source,
        given.out,
        tokenizer=given.tokenizer,
        vocab_size=given.vocab_size,
        boundary=given.boundary,
        validation_fraction=given.validation_fraction,
        shard_tokens=given.shard_tokens,
    )
    print(f"{given.out}: {summary(shards)}")
    return PREPARED


def summary(shards: Shards) -> str:
    """Files, bytes and tokens in one line."""
    index, vocabulary = shards.index, shards.index.vocabulary
    tokens = index.train.num_tokens + index.validation.num_tokens
    held_out = index.validation.num_tokens / tokens
    boundary = vocabulary.boundary_text or "nothing"
    return (
        f"{len(index.plan.files):,} files, {shards.num_bytes:,} bytes, {tokens:,} tokens "
        f"({shards.num_bytes / tokens:.3f} bytes a token, {held_out:.1%} held out) of "
        f"{vocabulary.vocab_size:,}, {boundary} after each file, {len(shards.shards)} shards"
    )
