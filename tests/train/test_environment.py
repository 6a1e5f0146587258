"""What a run notes of where it was made and of what its recipe did not reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fp4lab.recipes import get
from fp4lab.train import FitConfig, fit
from fp4lab.train import environment as environments
from fp4lab.train.folder import RunRecord, changes
from fp4lab.train.world import join


class Attending(nn.Module):
    """Its attention reads the weight of `out_proj` and never calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.out = nn.Linear(32, 32)

    def forward(self, x_BMK: Tensor) -> Tensor:
        return self.out(self.attention(x_BMK, x_BMK, x_BMK, need_weights=False)[0])


class Task:
    def build_model(self) -> nn.Module:
        return Attending()

    def batch(self, index: int) -> Tensor:
        return torch.full((2, 16, 32), 0.1 * (index + 1))

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    def validation(self) -> list[Tensor]:
        return []


def test_the_processor_and_its_instructions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with join(torch.device("cpu")) as world:
        found = environments.describe(world)
        assert found["device"] == environments.cpu_name() != ""
        assert found["instruction_set"].startswith(torch.backends.cpu.get_cpu_capability())
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
        assert environments.describe(world)["instruction_set"].endswith(", bfloat16, AMX")


def test_where_the_system_does_not_tell_the_architecture_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert environments.cpu_name() in {environments.platform.processor(),
                                       environments.platform.machine()}  # fmt: skip


def test_changes_name_what_came_and_went() -> None:
    before: dict[str, Any] = {"torch": "1", "threads": 1, "old": "x"}
    after: dict[str, Any] = {"torch": "2", "threads": 1, "new": "y"}
    assert changes(before, after) == "torch 1 -> 2, old x -> None, new None -> y"
    assert changes(before, before) == ""


def test_what_the_recipe_did_not_reach_is_recorded(tmp_path: Path) -> None:
    config = FitConfig(steps=1, device="cpu", threads=1)
    fit(Task(), recipe=get("nvfp4"), config=config, folder=tmp_path / "some")
    assert RunRecord.load(tmp_path / "some").unreachable == ("attention.out_proj",)
    fit(Task(), recipe=None, config=config, folder=tmp_path / "none")
    assert RunRecord.load(tmp_path / "none").unreachable == ()
