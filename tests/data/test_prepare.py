"""Shards: the tokens of the text, the same bytes however often a call dies, and what is refused."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import itertools
import json
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fp4lab import cli
from fp4lab.data import Corpus, Shards, load, pieces, prepare, progress, split
from fp4lab.data.progress import amount_progress
from fp4lab.data.shard_writer import PROGRESS
from fp4lab.errors import InputError, describe
from tests.data.texts import words, write_texts

SmallDisk = Callable[[int], AbstractContextManager[None]]
needs_tokenizers = pytest.mark.skipif(
    not importlib.util.find_spec("tokenizers"),
    reason="trains a BPE, which needs the extra data",
)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "text")


def contents(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != ".lock"
    }


def all_tokens(shards: Shards, part: str) -> list[int]:
    tokens = getattr(shards.split(), part)
    found: list[int] = tokens[np.arange(len(tokens))].tolist()
    return found


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("shard_tokens", [999, 1 << 20])
def test_byte_shards_are_the_split_of_the_corpus(
    fraction: float, shard_tokens: int, text: Path, tmp_path: Path
) -> None:
    shards = prepare(
        text, tmp_path / "out", validation_fraction=fraction, shard_tokens=shard_tokens
    )
    corpus = load(str(text))
    parts = split(corpus, fraction)
    assert all_tokens(shards, "train") == parts.train.tolist()
    assert all_tokens(shards, "validation") == parts.validation.tolist()
    assert (shards.split().held_out, shards.split().cut_file) == (parts.held_out, parts.cut_file)
    assert shards.num_bytes == corpus.num_bytes
    assert shards.tokens_per_byte == 1.0
    counts = [shard.num_tokens for shard in shards.index.train.shards]
    assert all(count == shard_tokens for count in counts[:-1])
    assert set(shards.index.plan.files) == set(corpus.files)


@needs_tokenizers
def test_bpe_shards_are_the_files_of_the_split_each_with_its_end(
    text: Path, tmp_path: Path
) -> None:
    shards = prepare(
        text, tmp_path / "out", tokenizer="bpe", vocab_size=400,
        validation_fraction=0.2, shard_tokens=700,
    )  # fmt: skip
    files = {file.name: (text / file.name).read_bytes() for file in load(str(text)).files}
    parts = split(load(str(text)), 0.2)
    assert parts.cut_file is None
    order = [file.name for file in shards.index.plan.files]
    groups = {
        "train": [name for name in order if name not in parts.held_out],
        "validation": [name for name in order if name in parts.held_out],
    }
    for part, names in groups.items():
        expected = [
            token
            for name in names
            for token in [*shards.tokenizer.encode([files[name]])[0].tolist(), 0]
        ]
        assert all_tokens(shards, part) == expected
        index = getattr(shards.index, part)
        assert index.num_tokens == len(expected)
        assert index.num_bytes == sum(len(files[name]) for name in names)
    assert len(shards.index.train.shards) > 3
    assert shards.index.vocabulary.dtype == "uint16"
    held_out = shards.index.validation
    assert shards.tokens_per_byte == held_out.num_tokens / held_out.num_bytes


@needs_tokenizers
def test_a_tokenizer_is_trained_on_what_is_not_held_out(text: Path, tmp_path: Path) -> None:
    """Other held-out text, of the same names and sizes, gives the same tokenizer."""
    first = prepare(text, tmp_path / "a", tokenizer="bpe", vocab_size=400, validation_fraction=0.2)
    for name in first.split().held_out:
        path = text / name
        path.write_bytes(b"z" * path.stat().st_size)
    second = prepare(text, tmp_path / "b", tokenizer="bpe", vocab_size=400, validation_fraction=0.2)
    assert second.split().held_out == first.split().held_out
    assert second.tokenizer.sha256 == first.tokenizer.sha256
    assert second.index.validation != first.index.validation


@needs_tokenizers
def test_a_file_is_cut_between_two_characters(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_bytes("\U0001f600".encode() * 301)
    for fraction in np.linspace(0.1, 0.2, 12):
        out = tmp_path / f"out{fraction}"
        shards = prepare(path, out, tokenizer="bpe", vocab_size=300, validation_fraction=fraction)
        assert shards.split().cut_file == "one.txt"
        for part in ("train", "validation"):
            decoded = shards.tokenizer.decode(all_tokens(shards, part))
            assert set(decoded) == {"\U0001f600"}
            assert len(decoded.encode()) == getattr(shards.index, part).num_bytes


@needs_tokenizers
def test_a_given_tokenizer_is_used_and_copied(text: Path, tmp_path: Path) -> None:
    first = prepare(text, tmp_path / "a", tokenizer="bpe", vocab_size=400)
    file = tmp_path / "a" / "tokenizer.json"
    second = prepare(text, tmp_path / "b", tokenizer=file)
    assert (tmp_path / "b" / "tokenizer.json").read_bytes() == file.read_bytes()
    assert (second.index.train, second.sha256) == (first.index.train, first.sha256)
    third = prepare(text, tmp_path / "c", tokenizer=file, boundary="e")
    assert third.index.vocabulary.boundary_text == "e"
    assert third.sha256 != first.sha256


def spawn(target: Callable[..., None], *arguments: object) -> Any:
    """A call in a process of its own, forked from one that has torch imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fp4lab.data"])
    process = context.Process(target=target, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def prepare_until(moment: int, source: Path, out: Path, tokenizer: str) -> None:
    """Dies before the bytes of file number `moment` are on the disk."""
    calls, fsync = itertools.count(1), os.fsync

    def die(descriptor: int) -> None:
        if next(calls) == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = die
    # Small enough that a shard ends within a piece and a piece within a shard.
    pieces.PIECE, pieces.CONTEXT = 700, 60
    prepare(source, out, tokenizer=tokenizer, vocab_size=300, shard_tokens=450)


@pytest.mark.slow
@needs_tokenizers
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_a_call_that_is_killed_everywhere_ends_with_the_same_bytes(
    tokenizer: str, tmp_path: Path
) -> None:
    text = write_texts(tmp_path / "text", files=4, count=150)
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert spawn(prepare_until, 0, text, whole, tokenizer) == 0
    deaths = 0
    # Each call gets one file further than the last.
    while spawn(prepare_until, 1 + deaths % 6, text, out, tokenizer) == -signal.SIGKILL:
        deaths += 1
    assert deaths > 10
    assert contents(out) == contents(whole)
    fresh = tmp_path / "fresh"
    for moment in itertools.count(1):
        if spawn(prepare_until, moment, text, fresh / str(moment), tokenizer) == 0:
            break
        assert spawn(prepare_until, 0, text, fresh / str(moment), tokenizer) == 0
        assert contents(fresh / str(moment)) == contents(whole)
    assert moment > 20


def test_finished_shards_are_not_written_again(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert spawn(prepare_until, 25, text, out, "bytes") == -signal.SIGKILL
    names = [shard["name"] for shard in json.loads((out / PROGRESS).read_text())["train"]]
    before = {name: (out / name).stat().st_mtime_ns for name in names}
    assert len(before) > 3
    assert spawn(prepare_until, 0, text, out, "bytes") == 0
    assert {name: (out / name).stat().st_mtime_ns for name in names} == before
    assert len(Shards.open(out).shards) > len(before)


def test_a_finished_folder_is_checked_and_left(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(text, out, shard_tokens=3000)
    before = contents(out)
    assert prepare(text, out, shard_tokens=3000) == Shards.open(out)
    assert contents(out) == before
    path = out / "train-00001.bin"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    assert Shards.open(out)
    with pytest.raises(
        InputError, match=r"train-00001\.bin has another checksum; prepare the text"
    ):
        prepare(text, out, shard_tokens=3000)
    path.write_bytes(data[:-1])
    for use in (lambda: Shards.open(out), lambda: prepare(text, out, shard_tokens=3000)):
        with pytest.raises(InputError, match=r"train-00001\.bin is missing or has not 3,000 bytes"):
            use()


def test_other_options_and_changed_text_are_refused(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(text, out)
    for changes, told in (
        ({"shard_tokens": 5}, r"shard_tokens \(67108864, now 5\)"),
        ({"validation_fraction": 0.3}, r"validation_fraction \(0.05, now 0.3\)"),
    ):
        with pytest.raises(
            InputError, match=f"was begun with another value of {told}; give another folder"
        ):
            prepare(text, out, **changes)
    (text / "part1" / "text1.txt").write_bytes(b"something else")
    with pytest.raises(
        InputError, match=r"text, in which 'part1/text1.txt' is new, gone or changed"
    ):
        prepare(text, out)


def test_changed_text_is_refused_when_going_on(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert spawn(prepare_until, 25, text, out, "bytes") == -signal.SIGKILL
    with pytest.raises(
        InputError, match=r"has no shards\.json; give a folder that `fp4lab data pre"
    ):
        Shards.open(out)
    (text / "new.txt").write_bytes(b"new")
    with pytest.raises(InputError, match=r"in which 'new.txt' is new, gone or changed"):
        prepare(text, out, shard_tokens=450)
    (text / "new.txt").unlink()
    assert prepare(text, out, shard_tokens=450).num_bytes > 0


@needs_tokenizers
def test_what_has_no_shards_yet_is_begun_anew(
    text: Path, tmp_path: Path, small_disk: SmallDisk
) -> None:
    out = tmp_path / "out"
    write_texts(text, count=3000)
    with small_disk(30_000), pytest.raises(OSError, match="File too large"):
        prepare(text, out, tokenizer="bpe", vocab_size=300)
    assert (out / "tokenizer.json").is_file()
    (text / "new.txt").write_bytes(words(77, 200).encode())
    prepare(text, out, tokenizer="bpe", vocab_size=320)
    prepare(text, tmp_path / "fresh", tokenizer="bpe", vocab_size=320)
    assert contents(out) == contents(tmp_path / "fresh")


@needs_tokenizers
@pytest.mark.parametrize("at", [0, 3000, 1 << 20, -1])
def test_a_file_that_is_not_utf8_is_named_before_anything_is_made(
    at: int, text: Path, tmp_path: Path
) -> None:
    """Also where the border of what is read at once cuts a character."""
    damaged = bytearray("\u00e9".encode() * 600_000)
    at %= len(damaged)
    damaged[at] = 0xFF if at != len(damaged) - 1 else 0xC3
    (text / "bad.txt").write_bytes(b"x" + damaged)
    # The byte before may begin the character that is not whole.
    told = rf"bad\.txt is not UTF-8 text \(byte ({at}|{at + 1})\); convert it or leave it out"
    with pytest.raises(InputError, match=told):
        prepare(text, tmp_path / "out", tokenizer="bpe")
    assert not (tmp_path / "out").exists()
    prepare(text, tmp_path / "out")


@pytest.mark.parametrize("name", ["shards.json", "shards-plan.json", "shards-progress.json"])
def test_damaged_records_are_one_line(name: str, text: Path, tmp_path: Path, broken: Any) -> None:
    out = tmp_path / "out"
    shards = prepare(text, out, shard_tokens=4000)
    path = out / name
    if name != "shards.json":
        record = json.loads((out / "shards.json").read_text())
        (out / "shards.json").unlink()
        (out / "shards-plan.json").write_text(json.dumps(record["plan"]))
        places = {
            f"{part}_at": {"document": 9, "byte": 0, "tokens": 0}
            for part in ("train", "validation")
        }
        done = {part: record[part]["shards"] for part in ("train", "validation")}
        (out / "shards-progress.json").write_text(json.dumps(done | places))
    whole = path.read_text()
    for damage in broken(whole):
        if name == "shards-progress.json" and set(json.loads(whole)) > set(_keys(damage)):
            continue  # its fields may be absent
        path.write_text(damage)
        with pytest.raises(InputError, match=name) as caught:
            prepare(text, out, shard_tokens=4000)
        assert "\n" not in str(caught.value)
    path.write_text(whole)
    assert shards.name == str(text)


def _keys(text: str) -> list[str]:
    try:
        table = json.loads(text)
    except json.JSONDecodeError:
        return ["not JSON"]
    return list(table) if isinstance(table, dict) else ["no table"]


def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("void").mkdir()
    Path("void/a.txt").touch()
    Path("a.txt").write_bytes(b"some text " * 100)
    Path("tiny.txt").write_bytes(b"tiny")
    Path("other").mkdir()
    Path("other/notes").touch()
    Path("broken.json").write_bytes(b"{")
    cases = [
        ([], "Missing from fp4lab data prepare"),
        (["absent", "--out", "x"], "source='absent' is no folder or file; give an existing path"),
        (["empty", "--out", "x"], "source='empty' holds no text file; text is what ends in"),
        (["void", "--out", "x"], "source='void' holds no text; name one with a non-empty file"),
        (["tiny.txt", "--out", "x"], "has 4 bytes, of which validation_fraction=0.05 holds out"),
        (["a.txt"], "--out"),
        (["a.txt", "--out", "a.txt"], "out=a.txt cannot be written (File exists); give a folder"),
        (["a.txt", "--out", "other"], "out=other holds 'notes' and no shards; give a new or an"),
        (["a.txt", "--out", "x", "--shard-tokens", "0"], "--shard-tokens=0 should be an integer"),
        (["a.txt", "--out", "x", "--validation-fraction", "0"], "is outside (0, 0.5]; give a part"),
        (["a.txt", "--out", "x", "--boundary", "e"], "boundary='e' is no byte; leave it out, or"),
        (
            ["a.txt", "--out", "x", "--tokenizer", "b"],
            "tokenizer=b is no file; give 'bytes', 'bpe'",
        ),
    ]
    if importlib.util.find_spec("tokenizers"):
        cases += [
            (["a.txt", "--out", "x", "--tokenizer", "broken.json"], "broken.json is no tokenizer"),
            (
                ["a.txt", "--out", "x", "--tokenizer", "bpe", "--vocab-size", "256"],
                "--vocab-size=256 should be an integer from 257",
            ),
        ]
    for arguments, message in cases:
        assert cli.main(["data", "prepare", *arguments]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("fp4lab: ")
        assert message in err
        assert not Path("x").exists()


def test_a_file_that_cannot_be_read_is_named(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def refuse(path: Path, *rest: Any, **options: Any) -> Any:
        if path.name == "text5.txt":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest, **options)

    monkeypatch.setattr(Path, "open", refuse)
    assert cli.main(["data", "prepare", str(text), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"fp4lab: {text}/part2/text5.txt: Permission denied\n"


def test_a_full_disk_is_one_line(text: Path, tmp_path: Path, small_disk: SmallDisk) -> None:
    with small_disk(3000), pytest.raises(OSError, match="File too large") as caught:
        prepare(text, tmp_path / "out")
    assert describe(caught.value) == f"{tmp_path / 'out' / 'train-00000.bin'}: File too large"


def test_the_command_says_what_it_made(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["data", "prepare", str(text), "--out", str(out)]) == 0
    size = load(str(text)).num_bytes
    assert capsys.readouterr().out.startswith(
        f"{out}: 12 files, {size:,} bytes, {size:,} tokens (1.000 bytes a token, "
    )


def test_help_and_a_wrong_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "--help"]) == 0
    assert "fp4lab data prepare" in capsys.readouterr().out
    assert cli.main(["data"]) == 2
    capsys.readouterr()
    assert cli.main(["data", "prepair"]) == 2
    assert "data command='prepair' is not known; did you mean 'prepare'?" in capsys.readouterr().err


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """48 MB of text, in a process that may hold little more than it does at its start."""
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        for index in range(48):
            file.write((f"{index:03} line of text\n" * 65_536).encode()[: 1 << 20])
    assert spawn(_prepare_in_little_memory, path, tmp_path / "out") == 0
    assert Shards.open(tmp_path / "out").num_bytes == 48 << 20


def _prepare_in_little_memory(path: Path, out: Path) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (32 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    prepare(path, out)


def test_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    with amount_progress("reading", 5000, stream=stream) as advance:
        for _ in range(25):
            now += 1.0
            advance(200)
    assert stream.getvalue().splitlines() == [
        "reading: 2,000 of 5,000 bytes", "reading: 4,000 of 5,000 bytes",
    ]  # fmt: skip


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with amount_progress("reading", 5000, stream=stream) as advance:
        advance(5000)
    assert "5,000/5,000 bytes" in stream.getvalue()


def test_mapped_tokens_are_the_array_they_hold(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)
    corpus = Corpus.from_files("made", [("a.txt", data.tobytes())])
    path = tmp_path / "a.txt"
    path.write_bytes(data.tobytes())
    shards = prepare(path, tmp_path / "out", shard_tokens=77)
    mapped, parts = shards.split(), split(corpus, 0.05)
    assert len(shards.shards) > 60
    places = np.random.default_rng(1).integers(0, len(parts.train), (13, 40))
    assert np.array_equal(mapped.train[places], parts.train[places])
