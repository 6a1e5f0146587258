from __future__ import annotations

import dataclasses
import math
import pickle
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fp4lab.errors import InputError
from fp4lab.train.config import DataConfig, ModelConfig, RunConfig
from fp4lab.train.task import LanguageTask, MeasuredTask, to_device


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "text.txt").write_bytes(bytes(range(256)) * 40)
    return RunConfig(
        batch_size=2,
        model=ModelConfig(dim=16, num_blocks=1, num_heads=2, num_kv_heads=1, head_dim=8),
        data=DataConfig(source=str(tmp_path), sequence_length=32, eval_windows=4),
    )


def test_a_language_task_is_the_config(config: RunConfig) -> None:
    task = LanguageTask.from_config(config)
    assert isinstance(task, MeasuredTask)
    assert (task.model.dim, task.model.num_kv_heads, task.model.vocab_size) == (16, 1, 256)
    tokens, targets = task.batch(5)
    assert tokens.shape == targets.shape == (2, 32)
    assert task.num_tokens((tokens, targets)) == 64
    assert sum(len(tokens) for tokens, _ in task.validation()) == 4
    assert task.bits_per_byte(math.log(2)) == pytest.approx(1.0, rel=1e-15)
    assert task.identity()["num_bytes"] == 256 * 40


def test_loss_is_the_mean_over_targets_in_nats(config: RunConfig) -> None:
    task = LanguageTask.from_config(config)
    model = task.build_model()
    with torch.no_grad():
        model.head.weight.zero_()
    # Equal logits: every byte costs ln 256, whatever the text.
    loss = task.loss(model, task.batch(0))
    torch.testing.assert_close(loss.item(), math.log(256), rtol=1e-6, atol=0)
    assert task.flops_per_token(model) == model.flops_per_token(32)


def test_a_task_goes_to_another_process_without_its_text(config: RunConfig) -> None:
    task = LanguageTask.from_config(config)
    task.batch(0)
    blob = pickle.dumps(task)
    assert len(blob) < 2000
    copy = pickle.loads(blob)
    assert copy == task
    assert torch.equal(copy.batch(3)[0], task.batch(3)[0])


def test_impossible_tasks_are_refused_before_anything_is_made(config: RunConfig) -> None:
    data = dataclasses.replace(config.data, sequence_length=65)
    with pytest.raises(InputError, match=r"data.sequence_length=65 .* context_length=64"):
        LanguageTask.from_config(dataclasses.replace(config, data=data))
    longer = dataclasses.replace(config.model, context_length=128)
    LanguageTask.from_config(dataclasses.replace(config, data=data, model=longer))
    with pytest.raises(InputError, match="did you mean 'gpt-tiny'"):
        LanguageTask.from_config(RunConfig(model=ModelConfig(preset="gpt-tny")))


class Named(NamedTuple):
    x: torch.Tensor
    y: int


def test_every_tensor_of_a_batch_is_moved() -> None:
    x = torch.zeros(2)
    batch = {"a": [x, (x, 3)], "b": Named(x, 4), "c": "text"}
    moved = to_device(batch, torch.device("meta"))
    assert moved["a"][0].is_meta
    assert moved["a"][1][0].is_meta
    assert isinstance(moved["b"], Named)
    assert moved["b"].x.is_meta
    assert (moved["a"][1][1], moved["b"].y, moved["c"]) == (3, 4, "text")
