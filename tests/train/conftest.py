"""A task that trains in microseconds and has everything that could make a resumed run differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fp4lab.train.config import DataConfig, FitConfig, ModelConfig, RunConfig
from fp4lab.train.metrics import TIMING, Event, read
from tests.data.texts import write_texts

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class SmallTask:
    """Regression by an MLP with dropout; batches differ by index."""

    #: Index of a batch that holds a NaN.
    poisoned: int = -1

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 1)
        )

    def batch(self, index: int) -> Pair:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(8, 4, generator=generator)
        if index == self.poisoned:
            x[3, 1] = torch.nan
        return x, x.sum(dim=1, keepdim=True)

    def validation(self) -> list[Pair]:
        return [self.batch(10_000 + index) for index in range(3)]

    def loss(self, model: nn.Module, batch: Pair) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(model(x), y)


@dataclass(frozen=True)
class CountedTask(SmallTask):
    """The same, which knows its tokens and its data."""

    data: str = "a" * 64

    def num_tokens(self, batch: Pair) -> int:
        return batch[1].numel()

    def bits_per_byte(self, loss: float) -> float:
        return 2 * loss

    def flops_per_token(self, model: nn.Module) -> float:
        return 1000.0

    def identity(self) -> dict[str, Any]:
        return {"sha256": self.data}


@pytest.fixture
def small_task() -> type[SmallTask]:
    return SmallTask


@pytest.fixture
def counted_task() -> type[CountedTask]:
    return CountedTask


@pytest.fixture
def fit_config() -> FitConfig:
    return FitConfig(
        steps=12, eval_every=5, checkpoint_every=4, device="cpu", microbatches=2, threads=1
    )


@pytest.fixture
def lines() -> Callable[[Path], list[Event]]:
    """The lines of a run's metrics.jsonl without the fields that are times."""

    def untimed(folder: Path) -> list[Event]:
        events = read(folder / "metrics.jsonl")
        return [{k: v for k, v in event.items() if k not in TIMING} for event in events]

    return untimed


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "text", count=300)


@pytest.fixture
def language_config(text: Path) -> RunConfig:
    """A GPT of 10 k parameters."""
    return RunConfig(
        steps=12,
        recipe="nvfp4",
        batch_size=4,
        eval_every=5,
        checkpoint_every=4,
        device="cpu",
        threads=1,
        model=ModelConfig(
            dim=16, num_blocks=1, num_heads=1, num_kv_heads=1, head_dim=16, hidden_dim=32
        ),
        data=DataConfig(source=str(text), sequence_length=16, eval_windows=8),
    )
