"""Data: text sources, tokenizers, shards, and batches that are functions of a seed and an index."""

from fp4lab.data.batches import TokenBatches, bits_per_byte
from fp4lab.data.corpus import Corpus, Split, TextFile, split
from fp4lab.data.prepare import prepare
from fp4lab.data.shards import Shards, is_shards
from fp4lab.data.sources import load
from fp4lab.data.tokenizer import ByteTokenizer, FileTokenizer

__all__ = [
    "ByteTokenizer",
    "Corpus",
    "FileTokenizer",
    "Shards",
    "Split",
    "TextFile",
    "TokenBatches",
    "bits_per_byte",
    "is_shards",
    "load",
    "prepare",
    "split",
]
