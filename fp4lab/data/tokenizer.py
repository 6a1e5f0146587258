"""From bytes of text to tokens and back: bytes themselves, or a tokenizer.json.

The second is a file of the library `tokenizers` (Hugging Face), which this imports when it is
used. A special token that is spelled out in a text is encoded as text, and nothing is added to it:
the token that ends a document is put there by who knows where documents end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fp4lab.errors import InputError, optional

Tokens = npt.NDArray[np.unsignedinteger[Any]]

BOUNDARY = "<|endoftext|>"
#: the tokens that end a document in published tokenizers, the first that is there counts
KNOWN_BOUNDARIES = (BOUNDARY, "<|end_of_text|>", "</s>", "<eos>")
#: every byte, and the boundary
SMALLEST_VOCABULARY = 257


class Tokenizer(Protocol):
    """What turns text into tokens."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token."""

    @property
    def boundary(self) -> int | None:
        """The token that follows every document; None if nothing does."""

    @property
    def sha256(self) -> str | None:
        """SHA-256 of the tokenizer.json; None for bytes."""

    def encode(self, texts: Sequence[bytes]) -> list[Tokens]:
        """The tokens of every text; ValueError for bytes that are no text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens; U+FFFD where they are no text."""


class ByteTokenizer:
    """Every byte is a token, so any file can be encoded and nothing stands between documents.

    >>> ByteTokenizer().encode([b"caf\\xc3"])
    [array([ 99,  97, 102, 195], dtype=uint8)]
    >>> ByteTokenizer().decode([99, 97, 102, 195])
    'caf\\ufffd'
    """

    vocab_size: int = 256
    boundary: int | None = None
    sha256: str | None = None

    def encode(self, texts: Sequence[bytes]) -> list[Tokens]:
        """The bytes, as uint8."""
        return [np.frombuffer(text, np.uint8) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """The bytes as UTF-8, with U+FFFD where they are not."""
        return bytes(tokens).decode("utf-8", "replace")


class FileTokenizer:
    """The tokenizer of a tokenizer.json.

    `boundary` is the token that ends a document; None takes the first of `KNOWN_BOUNDARIES` that
    the vocabulary has. Raises InputError if the library is missing, the text is no tokenizer, or
    the vocabulary lacks the boundary.

    >>> tokenizer = FileTokenizer.read(Path("tokenizer.json"))  # doctest: +SKIP
    >>> tokenizer.decode(tokenizer.encode([b"Some text."])[0].tolist())  # doctest: +SKIP
    'Some text.'
    """

    def __init__(self, text: bytes, *, where: str, boundary: str | None = None) -> None:
        library = optional("tokenizers", argument=where, package="tokenizers")
        try:
            self._tokenizer = library.Tokenizer.from_str(text.decode("utf-8"))
        except Exception as error:  # the library raises no class of its own
            reason = " ".join(str(error).split())
            raise InputError(
                f"{where} is no tokenizer that {library.__name__} {library.__version__} reads: "
                f"{reason}; give a whole tokenizer.json"
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.text = text
        self.sha256 = hashlib.sha256(text).hexdigest()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise InputError(f"{where} has an empty vocabulary; give another tokenizer.json")
        self.vocab_size = max(vocabulary.values()) + 1
        self.boundary_text = boundary or next(
            filter(vocabulary.__contains__, KNOWN_BOUNDARIES), None
        )
        if boundary is not None and boundary not in vocabulary:
            raise InputError(
                f"boundary={boundary!r} is not in the vocabulary of {where}; give one of its tokens"
            )
        self.boundary = None if self.boundary_text is None else vocabulary[self.boundary_text]

    @classmethod
    def read(cls, path: Path, *, boundary: str | None = None) -> FileTokenizer:
        """The tokenizer in a file; InputError if there is none."""
        try:
            text = path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            raise InputError(
                f"tokenizer={path} is no file; give 'bytes', 'bpe' or the path of a tokenizer.json"
            ) from None
        return cls(text, where=str(path), boundary=boundary)

    def encode(self, texts: Sequence[bytes]) -> list[Tokens]:
        """The tokens of every text, as uint32; UnicodeDecodeError for bytes that are not UTF-8."""
        decoded = [text.decode("utf-8") for text in texts]
        encoded = self._tokenizer.encode_batch_fast(decoded, add_special_tokens=False)
        return [np.array(each.ids, np.uint32) for each in encoded]

    def decode(self, tokens: Sequence[int]) -> str:
        """The text without special tokens."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


def train_bpe(texts: Iterable[bytes], vocab_size: int) -> bytes:
    """The tokenizer.json of a byte-level BPE, with the pre-tokenizer of GPT-2.

    The same texts give the same file, whatever the number of threads. `vocab_size` counts the 256
    bytes and the boundary `<|endoftext|>`, token 0; a small text may give fewer. UnicodeDecodeError
    for bytes that are not UTF-8.
    """
    library = optional("tokenizers", argument="tokenizer='bpe'", package="tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    byte_level = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(byte_level.alphabet()),
        special_tokens=[BOUNDARY],
        show_progress=False,
    )
    tokenizer.train_from_iterator((text.decode("utf-8") for text in texts), trainer)
    file: str = tokenizer.to_str(pretty=True)
    return file.encode()
