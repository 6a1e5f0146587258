"""The loss on other text: all of it, once, with the run's tokenizer."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fp4lab import convert, recipes
from fp4lab.data import ByteTokenizer, Shards, prepare
from fp4lab.errors import InputError
from fp4lab.train import Evaluation, LanguageTask, RunConfig, evaluate, train
from fp4lab.train import checkpoint as checkpoints
from fp4lab.train.forward import reproducible
from fp4lab.train.other_text import OtherText
from fp4lab.train.tensors import restore_model
from tests.data.texts import words, write_texts
from tests.train.test_shards_run import on

NEWEST = "checkpoints/step-00000012"


@pytest.fixture
def config(language_config: RunConfig) -> RunConfig:
    return language_config


@pytest.fixture
def run(config: RunConfig, tmp_path: Path) -> Path:
    """Trained in BF16, where a window's loss does not depend on the others of its batch."""
    train(dataclasses.replace(config, recipe="bf16"), folder=tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def bpe(text: Path, tmp_path: Path) -> Shards:
    pytest.importorskip("tokenizers", reason="trains a BPE, which needs the extra data")
    return prepare(text, tmp_path / "bpe", tokenizer="bpe", vocab_size=320)


def by_hand(run: Path, config: RunConfig, tokens: list[int], *, windows: list[int]) -> float:
    """Nats of all targets, one window after another."""
    task = LanguageTask.from_config(config)
    model = task.build_model()
    saved = checkpoints.load(run / NEWEST)
    restore_model(model, saved.tensors["model"], saved.state.tied, source=run)
    convert(model, recipes.get("bf16"))
    total, length = 0.0, config.data.sequence_length
    with torch.no_grad(), reproducible(config, torch.device("cpu")):
        for begin in windows:
            row = torch.tensor(tokens[begin : begin + length + 1])
            logits = model(row[None, :-1])[0]
            total += float(torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum"))
    return total


def test_every_token_but_the_first_counts_once(
    run: Path,
    config: RunConfig,
    tmp_path: Path,
) -> None:
    other = tmp_path / "other.md"
    other.write_bytes(words(50, 60).encode())
    tokens = list(other.read_bytes())
    config = dataclasses.replace(config, recipe="bf16")
    length = config.data.sequence_length
    assert (len(tokens) - 1) % length
    found = evaluate(run, data=other, device="cpu")
    assert isinstance(found, Evaluation)
    assert (found.tokens, found.step) == (len(tokens) - 1, 12)
    total = by_hand(run, config, tokens, windows=list(range(0, len(tokens) - 1, length)))
    assert found.loss == pytest.approx(total / (len(tokens) - 1), rel=1e-5)
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2), rel=1e-15)
    assert evaluate(run / NEWEST, data=other, device="cpu") == found


def test_windows_are_spread_evenly(run: Path, config: RunConfig, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_bytes(words(50, 60).encode())
    tokens = list(other.read_bytes())
    last = len(tokens) - 1 - 16
    found = evaluate(run, data=other, windows=3, device="cpu")
    total = by_hand(run, config, tokens, windows=[0, last // 2, last])
    assert found.tokens == 48
    assert found.loss == pytest.approx(total / 48, rel=1e-5)


def test_the_held_out_part_of_the_runs_own_shards(
    config: RunConfig,
    text: Path,
    bpe: Shards,
    tmp_path: Path,
) -> None:
    """All windows of it are what the run reports where it evaluates all of them."""
    run = tmp_path / "run"
    train(on(config, bpe.folder), folder=run)
    found = evaluate(run, data=bpe.folder, device="cpu")
    assert found.tokens == bpe.index.validation.num_tokens - 1
    assert found.bits_per_byte == pytest.approx(
        found.loss / math.log(2) * bpe.tokens_per_byte, rel=1e-15
    )
    same = evaluate(run, data=bpe.folder, windows=8, device="cpu")
    assert same.loss == evaluate(run, device="cpu").loss
    # The text of the held-out files, wherever it lies and without the shards.
    held_out, names = tmp_path / "held_out", bpe.split().held_out
    assert len(names) == 1
    for name in names:
        (held_out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(text / name, held_out / name)
    shutil.rmtree(bpe.folder)
    again = evaluate(run, data=held_out, device="cpu")
    assert again.tokens == found.tokens
    assert again.loss == found.loss


def test_a_text_is_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    root = write_texts(tmp_path / "text", files=5)
    read = OtherText.read(str(root), ByteTokenizer())
    names = sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*.txt") if path.stat().st_size
    )
    kept = [name for name in names if name != "part1/text1.txt"]  # copy.txt comes first
    joined = b"".join((root / name).read_bytes() for name in kept)
    assert np.asarray(read.tokens[np.arange(len(read.tokens))]).tobytes() == joined
    assert read.num_bytes == len(joined)


def test_bad_text_is_one_line(
    run: Path,
    text: Path,
    tmp_path: Path,
    refused: Callable[..., str],
) -> None:
    (tmp_path / "one.txt").write_bytes(b"x")
    cases = [
        (["--data", "/absent"], "--data='/absent' is no folder or file"),
        (["--data", str(tmp_path / "one.txt")], "one.txt has 1 token; give text of two or more"),
        (["--windows", "3"], "windows=3 is for other text; give data=, or leave it out"),
        (["--data", str(text), "--windows", "99999"], "windows=99999 must be 1 to "),
    ]
    for arguments, message in cases:
        assert message in refused("eval", str(run), "--device", "cpu", *arguments)


def test_other_shards_and_text_that_is_not_utf8_are_refused(
    config: RunConfig,
    text: Path,
    bpe: Shards,
    tmp_path: Path,
) -> None:
    train(on(config, bpe.folder), folder=tmp_path / "run")
    prepare(text, tmp_path / "bytes")
    with pytest.raises(
        InputError, match=r"made by another tokenizer \(bytes\) than that of the run"
    ):
        evaluate(tmp_path / "run", data=tmp_path / "bytes", device="cpu")
    (tmp_path / "latin.txt").write_bytes("d\u00e9j\u00e0".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.txt is not UTF-8 text \(byte 1\)"):
        evaluate(tmp_path / "run", data=tmp_path / "latin.txt", device="cpu")
    (tmp_path / "run" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json is missing; restore it"):
        evaluate(tmp_path / "run", data=text, device="cpu")


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "fp8_block", "nvfp4+2d.fprop"])
def test_a_last_window_of_any_length_runs_under_every_recipe(
    recipe: str,
    config: RunConfig,
    tmp_path: Path,
) -> None:
    config = dataclasses.replace(config, recipe=recipe, steps=2, ragged="pad")
    train(config, folder=tmp_path / "run")
    for size in (2, 17, 20):
        (tmp_path / "other.txt").write_bytes(words(3, 40).encode()[:size])
        found = evaluate(tmp_path / "run", data=tmp_path / "other.txt", device="cpu")
        assert found.tokens == size - 1
        assert 3 < found.loss < 9
