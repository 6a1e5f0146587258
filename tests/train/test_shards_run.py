"""Runs on shards: byte shards give the bits of a folder, and a BPE counts bits a byte exactly."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from fp4lab.data import Shards, prepare
from fp4lab.errors import InputError
from fp4lab.train import LanguageTask, RunConfig, evaluate, task, train
from fp4lab.train import checkpoint as checkpoints
from fp4lab.train.metrics import Event
from fp4lab.train.trained import own_tokenizer
from tests.data.texts import words

Lines = Callable[[Path], list[Event]]


@pytest.fixture
def config(language_config: RunConfig) -> RunConfig:
    return language_config


def on(config: RunConfig, shards: Path) -> RunConfig:
    return dataclasses.replace(config, data=dataclasses.replace(config.data, source=str(shards)))


def assert_same_weights(one: Path, other: Path) -> None:
    left, right = (
        checkpoints.load(checkpoints.available(run / "checkpoints")[-1]) for run in (one, other)
    )
    for name in ("model", "optimizer"):
        assert left.tensors[name].keys() == right.tensors[name].keys()
        for key, tensor in left.tensors[name].items():
            assert torch.equal(tensor, right.tensors[name][key])


def test_byte_shards_train_to_the_bits_of_the_folder(
    config: RunConfig, text: Path, tmp_path: Path, lines: Lines
) -> None:
    prepare(text, tmp_path / "shards", shard_tokens=2000)
    train(config, folder=tmp_path / "a")
    train(on(config, tmp_path / "shards"), folder=tmp_path / "b")
    assert lines(tmp_path / "a") == lines(tmp_path / "b")
    assert_same_weights(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b" / "tokenizer.json").exists()
    assert own_tokenizer(tmp_path / "b").vocab_size == 256


@pytest.fixture
def bpe(text: Path, tmp_path: Path) -> Shards:
    pytest.importorskip("tokenizers", reason="trains a BPE, which needs the extra data")
    return prepare(
        text, tmp_path / "bpe", tokenizer="bpe", vocab_size=320, shard_tokens=1000,
        validation_fraction=0.2,
    )  # fmt: skip


def test_a_run_on_a_bpe_resumes_to_the_same_bits(
    config: RunConfig, bpe: Shards, tmp_path: Path, lines: Lines
) -> None:
    config = on(config, bpe.folder)
    train(config, folder=tmp_path / "whole")

    def stop(event: Event) -> None:
        if event["kind"] == "train" and event["step"] == 7:
            raise RuntimeError("dies")

    with pytest.raises(RuntimeError, match="dies"):
        train(config, folder=tmp_path / "cut", on_event=stop)
    train(config, folder=tmp_path / "cut")
    assert lines(tmp_path / "whole") == lines(tmp_path / "cut")
    assert_same_weights(tmp_path / "whole", tmp_path / "cut")


def test_the_tokenizer_sets_the_vocabulary_and_lies_in_the_runs_folder(
    config: RunConfig, bpe: Shards, tmp_path: Path
) -> None:
    config = on(config, bpe.folder)
    language = LanguageTask.from_config(config)
    assert language.model.vocab_size == 320
    tokens, targets = language.batch(3)
    assert int(tokens.max()) > 255
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    train(config, folder=tmp_path / "run")
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == (
        bpe.folder / "tokenizer.json"
    ).read_bytes()
    record = json.loads((tmp_path / "run" / "environment.json").read_text())["data"]
    assert record["sha256"] == bpe.sha256
    assert record["boundary"] == "<|endoftext|>"
    wider = dataclasses.replace(config.model, vocab_size=384)
    assert LanguageTask.from_config(
        dataclasses.replace(config, model=wider)
    ).model.vocab_size == 384  # fmt: skip
    narrow = dataclasses.replace(config.model, vocab_size=300)
    with pytest.raises(
        InputError, match=r"model.vocab_size=300 is less than the 320 tokens of the"
    ):
        LanguageTask.from_config(dataclasses.replace(config, model=narrow))


def test_bits_a_byte_of_a_bpe_are_exact(config: RunConfig, bpe: Shards, tmp_path: Path) -> None:
    """Against the files themselves: their bytes, and their tokens by the library."""
    library = pytest.importorskip("tokenizers", reason="needs the extra data")
    theirs = library.Tokenizer.from_file(str(bpe.folder / "tokenizer.json"))
    theirs.encode_special_tokens = True
    names = bpe.split().held_out
    held_out = [(tmp_path / "text" / name).read_bytes() for name in names]
    num_tokens = sum(len(theirs.encode(text.decode()).ids) + 1 for text in held_out)
    num_bytes = sum(map(len, held_out))
    result = train(on(config, bpe.folder), folder=tmp_path / "run")
    assert result.val_loss is not None
    expected = result.val_loss / math.log(2) * num_tokens / num_bytes
    assert result.bits_per_byte == pytest.approx(expected, rel=1e-15)
    assert num_tokens < 0.9 * num_bytes


def test_equal_logits_cost_the_vocabulary(config: RunConfig, bpe: Shards) -> None:
    language = LanguageTask.from_config(on(config, bpe.folder))
    model = language.build_model()
    nn.init.zeros_(model.head.weight)
    loss = language.loss(model, language.batch(0)).item()
    assert loss == pytest.approx(math.log(320), rel=1e-6)
    held_out = bpe.index.validation
    bits = math.log2(320) * held_out.num_tokens / held_out.num_bytes
    assert language.bits_per_byte(math.log(320)) == pytest.approx(bits, rel=1e-15)


def test_what_is_wrong_with_shards_is_one_line(
    config: RunConfig, bpe: Shards, tmp_path: Path
) -> None:
    config = on(config, bpe.folder)
    another = dataclasses.replace(config.data, validation_fraction=0.3)
    with pytest.raises(InputError, match=r"validation_fraction=0\.3 is not that of the shards in"):
        LanguageTask.from_config(dataclasses.replace(config, data=another)).batch(0)
    copy = tmp_path / "copy"
    shutil.copytree(bpe.folder, copy)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json is missing; restore it from the folder"):
        train(on(config, copy), folder=tmp_path / "run")
    (copy / "tokenizer.json").write_bytes(
        (bpe.folder / "tokenizer.json").read_bytes().replace(b"\n", b"\n ", 1)
    )
    with pytest.raises(
        InputError, match=r"has sha256 .*, with which the tokens were made; restore"
    ):
        train(on(config, copy), folder=tmp_path / "run")
    (copy / "shards.json").rename(copy / "shards-plan.json")
    with pytest.raises(InputError, match=r"has no shards\.json; give a folder that"):
        train(on(config, copy), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_gone_on_with_on_other_shards(
    config: RunConfig, bpe: Shards, text: Path, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    shutil.copytree(bpe.folder, place)
    train(on(config, place), folder=tmp_path / "run")
    shutil.rmtree(place)
    (text / "more.txt").write_bytes(words(99, 100).encode())
    prepare(text, place, tokenizer=bpe.folder / "tokenizer.json")
    task._batches.cache_clear()  # as in another process
    with pytest.raises(InputError, match=r"differs in data \(sha256"):
        train(on(config, place), folder=tmp_path / "run")
    with pytest.raises(InputError, match="the text has sha256"):
        evaluate(tmp_path / "run", device="cpu")
