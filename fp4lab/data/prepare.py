"""From text to shards, in little memory, and from where it stopped.

The text is read once for its hashes, perhaps once to train a tokenizer, and once to be encoded.
shards-plan.json, written first, decides what the shards will be; `shard_writer` tells how a killed
call is gone on with; shards.json, written last, makes the folder whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fp4lab.data.corpus import Cut
from fp4lab.data.pieces import Document, encoded, texts
from fp4lab.data.progress import Advance, amount_progress
from fp4lab.data.scan import scan
from fp4lab.data.shard_writer import PROGRESS, PartWriter, Progress
from fp4lab.data.shards import (
    BYTES,
    CURE,
    INDEX,
    PLAN,
    TOKENIZER,
    TRAIN,
    VALIDATION,
    DType,
    Index,
    Part,
    Plan,
    Shards,
    Vocabulary,
    token_dtype,
)
from fp4lab.data.sources import Source, find
from fp4lab.data.tokenizer import (
    SMALLEST_VOCABULARY,
    ByteTokenizer,
    FileTokenizer,
    train_bpe,
)
from fp4lab.errors import InputError, optional, whole
from fp4lab.specs.files import (
    read_record,
    remove_leftovers,
    strangers,
    write_json,
    write_text,
)
from fp4lab.specs.lock import LOCK, only_one

BPE = "bpe"
#: a tokenizer is trained on so much of the text, so that its counts fit into memory
TRAINED_ON = 1 << 30


def prepare(
    source: str | Path,
    out: str | Path,
    *,
    tokenizer: str | Path = BYTES,
    vocab_size: int = 4096,
    boundary: str | None = None,
    validation_fraction: float = 0.05,
    shard_tokens: int = 1 << 26,
) -> Shards:
    """Encode a text of any size into shards that training maps into memory.

    The same arguments go on with what a killed call left, and give the same files. On a folder that
    is finished they read it through and find damage.

    Args:
        source: "stdlib", a folder of text files, or a file, as everywhere.
        out: the folder of the shards.
        tokenizer: "bytes", "bpe" to train one on the first GiB of the text that is not held out, or
            the path of a tokenizer.json.
        vocab_size: tokens of a BPE, the 256 bytes and `<|endoftext|>` included; a small text gives
            fewer. Multiples of 32 suit every format where a recipe quantizes the output head.
        boundary: the token after every document; None takes `<|endoftext|>`, `<|end_of_text|>`,
            `</s>` or `<eos>`, whichever comes first in this list and is in the vocabulary. Bytes
            have none.
        validation_fraction: part of the bytes held out, by whole files where possible.
        shard_tokens: tokens in a shard; the last one has fewer.

    Raises:
        InputError: no text, or too little to hold out any of it; a file that is not UTF-8, but for
            bytes; a tokenizer that cannot be read; a folder with something else in it, or with
            shards of other text or options; text that changed meanwhile.
        OSError: a file that cannot be read or written.

    >>> _ = Path("notes.txt").write_bytes(b"Some text. " * 20)
    >>> prepare("notes.txt", "tokens", tokenizer="bytes").index.train.num_tokens
    209
    """
    folder = Path(out)
    given = _Given.of(str(source), str(tokenizer), vocab_size, boundary)
    _check(shard_tokens, validation_fraction)
    found = find(given.source)
    _check_folder(folder)
    plan = _plan(found, given, validation_fraction, shard_tokens)
    with only_one(folder, argument="out", user="a preparation"):
        remove_leftovers(folder)
        if (folder / INDEX).is_file():
            done = Shards.open(folder)
            _check_same(folder, done.index.plan, plan)
            done.verify()
        else:
            _prepare(folder, plan, given, dict(found.files))
        # A death may have come between the index and this.
        for name in (PROGRESS, PLAN):
            (folder / name).unlink(missing_ok=True)
    return Shards.open(folder)


@dataclass(frozen=True)
class _Given:
    """What to read and how to encode it."""

    source: str
    kind: Literal["bytes", "bpe", "file"]
    file: FileTokenizer | None
    vocab_size: int | None
    boundary: str | None

    @classmethod
    def of(cls, source: str, tokenizer: str, vocab_size: int, boundary: str | None) -> _Given:
        if tokenizer == BYTES:
            if boundary is not None:
                raise InputError(
                    f"boundary={boundary!r} is no byte; leave it out, or use another tokenizer"
                )
            return cls(source, "bytes", None, None, None)
        if tokenizer == BPE:
            optional("tokenizers", argument=f"tokenizer={BPE!r}", package="tokenizers")
            size = whole("vocab_size", vocab_size, SMALLEST_VOCABULARY, 2**24)
            return cls(source, "bpe", None, size, boundary)
        file = FileTokenizer.read(Path(tokenizer), boundary=boundary)
        return cls(source, "file", file, None, boundary)


def _check(shard_tokens: int, validation_fraction: float) -> None:
    whole("shard_tokens", shard_tokens, 1, 2**40)
    if not 0 < validation_fraction <= 0.5:
        raise InputError(
            f"validation_fraction={validation_fraction!r} is outside (0, 0.5]; give a part such as "
            "0.05"
        )


def _plan(found: Source, given: _Given, fraction: float, shard_tokens: int) -> Plan:
    files = scan(found, is_text=given.kind != BYTES)
    cut = Cut.of(files, fraction)
    border = cut.border
    if given.kind != BYTES and cut.cut_file is not None:
        border = _whole_character(dict(found.files), cut)
    if not 0 < border < sum(file.num_bytes for file in files):
        raise InputError(
            f"source={found.name!r} has {sum(file.num_bytes for file in files)} bytes, of which "
            f"validation_fraction={fraction} holds out none or all; give more text"
        )
    return Plan(
        source=found.name,
        tokenizer=given.kind,
        tokenizer_sha256=None if given.file is None else given.file.sha256,
        vocab_size=given.vocab_size,
        boundary=given.boundary,
        validation_fraction=fraction,
        shard_tokens=shard_tokens,
        files=cut.files,
        border=border,
    )


def _whole_character(paths: dict[str, Path], cut: Cut) -> int:
    """The border, moved on to where a character of UTF-8 begins in the file that it cuts."""
    before = sum(file.num_bytes for file in cut.files[: cut.first - 1])
    file = cut.files[cut.first - 1]
    with paths[file.name].open("rb") as text:
        text.seek(cut.border - before)
        rest = text.read(4)
    following = next((i for i, byte in enumerate(rest) if byte & 0xC0 != 0x80), 0)
    return cut.border + following


def _check_folder(folder: Path) -> None:
    if not folder.is_dir() or (folder / PLAN).is_file() or (folder / INDEX).is_file():
        return
    if others := strangers(folder, {LOCK, PLAN}):
        raise InputError(
            f"out={folder} holds {others[0]!r} and no shards; give a new or an empty folder"
        )


def _check_same(folder: Path, old: Plan, now: Plan) -> None:
    if old == now:
        return
    changed = [
        f"{field.name} ({getattr(old, field.name)!r}, now {getattr(now, field.name)!r})"
        for field in dataclasses.fields(Plan)
        if field.name not in {"files", "border"}
        and getattr(old, field.name) != getattr(now, field.name)
    ]
    differing = sorted(file.name for file in set(old.files) ^ set(now.files))
    if differing:
        changed.append(f"the text, in which {differing[0]!r} is new, gone or changed")
    raise InputError(
        f"out={folder} was begun with another value of {', '.join(changed)}; give another folder, "
        "or the same text and options"
    )


def _prepare(folder: Path, plan: Plan, given: _Given, paths: dict[str, Path]) -> None:
    _begin(folder, plan)
    parts = _documents(plan, paths)
    tokenizer = _tokenizer(folder, given, parts[TRAIN])
    work = _Encoding(folder, tokenizer, plan.shard_tokens)
    with amount_progress("encoding", sum(file.num_bytes for file in plan.files)) as advance:
        done = {name: work.part(name, documents, advance) for name, documents in parts.items()}
    index = Index(
        plan=plan, vocabulary=work.vocabulary, train=done[TRAIN], validation=done[VALIDATION]
    )
    write_json(folder / INDEX, dataclasses.asdict(index))


def _begin(folder: Path, plan: Plan) -> None:
    """Write the plan, unless shards of the same one are there."""
    if (folder / PLAN).is_file():
        old = read_record(folder / PLAN, Plan, cure=CURE)
        if old == plan:
            return
        if Progress.read(folder) != Progress():
            _check_same(folder, old, plan)
        # Of other text or options, but nothing that took long.
        (folder / TOKENIZER).unlink(missing_ok=True)
    write_json(folder / PLAN, dataclasses.asdict(plan))


def _documents(plan: Plan, paths: dict[str, Path]) -> dict[str, list[Document]]:
    """The files of both parts, that which is cut in both."""
    parts: dict[str, list[Document]] = {TRAIN: [], VALIDATION: []}
    begin = 0
    for file in plan.files:
        cut = min(max(plan.border - begin, 0), file.num_bytes)
        if cut > 0:
            parts[TRAIN].append(Document(file, paths[file.name], 0, cut))
        if cut < file.num_bytes:
            parts[VALIDATION].append(Document(file, paths[file.name], cut, file.num_bytes))
        begin += file.num_bytes
    return parts


def _tokenizer(
    folder: Path, given: _Given, documents: list[Document]
) -> ByteTokenizer | FileTokenizer:
    if given.kind == BYTES:
        return ByteTokenizer()
    path = folder / TOKENIZER
    if given.file is not None:
        write_text(path, given.file.text.decode())
        return given.file
    if path.is_file():
        return FileTokenizer.read(path, boundary=given.boundary)
    assert given.vocab_size is not None
    total = min(TRAINED_ON, sum(document.end - document.begin for document in documents))
    with amount_progress("training the tokenizer", total) as advance:
        file = train_bpe(_shown(texts(documents, limit=TRAINED_ON), advance), given.vocab_size)
    # Before it is written: a boundary that it lacks should leave nothing behind.
    found = FileTokenizer(file, where="the trained tokenizer", boundary=given.boundary)
    write_text(path, file.decode())
    return found


def _shown(texts: Iterator[bytes], advance: Advance) -> Iterator[bytes]:
    for text in texts:
        yield text
        advance(len(text))


@dataclass(frozen=True)
class _Encoding:
    """How a text becomes shards, and where."""

    folder: Path
    tokenizer: ByteTokenizer | FileTokenizer
    shard_tokens: int

    @property
    def dtype(self) -> DType:
        """The type of the tokens."""
        return token_dtype(self.tokenizer.vocab_size)

    def part(self, name: str, documents: list[Document], advance: Advance) -> Part:
        """A part with all its shards, on from those that are there."""
        writer = PartWriter(self.folder, name, self.dtype, shard_tokens=self.shard_tokens)
        start = writer.start
        sizes = [document.end - document.begin for document in documents]
        advance(sum(sizes[: start.document]))
        try:
            for piece in encoded(documents, self.tokenizer, start=(start.document, start.byte)):
                writer.add(piece)
                advance(piece.num_bytes)
            writer.end(len(documents))
        finally:
            writer.discard()
        num_tokens = sum(shard.num_tokens for shard in writer.shards)
        return Part(num_bytes=sum(sizes), num_tokens=num_tokens, shards=tuple(writer.shards))

    @property
    def vocabulary(self) -> Vocabulary:
        """What the tokens mean."""
        named = self.tokenizer if isinstance(self.tokenizer, FileTokenizer) else None
        return Vocabulary(
            vocab_size=self.tokenizer.vocab_size,
            sha256=self.tokenizer.sha256,
            boundary=self.tokenizer.boundary,
            boundary_text=None if named is None else named.boundary_text,
            dtype=self.dtype,
        )
