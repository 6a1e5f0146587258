"""Data: text sources, and batches that are pure functions of a seed and an index."""

from fp4lab.data.batches import TokenBatches, bits_per_byte
from fp4lab.data.corpus import Corpus, Split, TextFile, split
from fp4lab.data.sources import folder, load, standard_library

__all__ = [
    "Corpus",
    "Split",
    "TextFile",
    "TokenBatches",
    "bits_per_byte",
    "folder",
    "load",
    "split",
    "standard_library",
]
