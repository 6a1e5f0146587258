"""Converted models in two processes: DistributedDataParallel and FSDP2, in all they do to a model.

Each process trains on batches of its own with noise of its own. One process that computes both and
averages the gradients gives the same bits: the sum of two numbers and its half depend on no order.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fp4lab
from tests.nn.parallel_training import CASES, RANKS, RECIPES, STEPS, batch, build

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process found."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("parallel_training.py")
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={RANKS}", str(script), str(folder)),
        ],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)]


@cache
def alone(recipe: str) -> tuple[list[list[float]], nn.Module]:
    """The same training in one process: the losses of each rank, and the model."""
    model = build()
    fp4lab.convert(model, RECIPES[recipe])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[list[float]] = [[] for _ in range(RANKS)]
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(RANKS):
            fp4lab.set_step(model, step, rank)
            loss = model(batch(step, rank)).square().mean()
            # exact, for it halves
            (loss / RANKS).backward()
            losses[rank].append(loss.item())
        optimizer.step()
    return losses, model


@pytest.mark.parametrize("case", CASES, ids=str)
def test_training_is_that_of_one_process_bit_for_bit(
    case: tuple[str, str, bool], ranks: list[dict[str, Any]]
) -> None:
    losses, model = alone(case[1])
    for rank, found in enumerate(ranks):
        assert found["cases"][case]["losses"] == losses[rank]
        weights = found["cases"][case]["weights"]
        # the keys of the unconverted model, whatever is wrapped around
        assert list(weights) == list(build().state_dict())
        for name, value in model.state_dict().items():
            assert torch.equal(weights[name], value)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_load_and_recipes_change(
    case: tuple[str, str, bool], ranks: list[dict[str, Any]]
) -> None:
    """State dicts to and from the unconverted model, `set_recipe` and `disabled`."""
    for rank, found in enumerate(ranks):
        plain, x = build(), batch(0, rank)
        plain.load_state_dict(found["cases"][case]["weights"], strict=True)
        with torch.no_grad():
            assert torch.equal(found["cases"][case]["disabled"], plain(x))
            fp4lab.convert(plain, "mxfp8")
            assert torch.equal(found["cases"][case]["mxfp8"], plain(x))
            plain.load_state_dict(build().state_dict())
            assert torch.equal(found["cases"][case]["loaded"], plain(x))


def test_a_training_without_steps_is_told_where_it_can_be_seen(
    ranks: list[dict[str, Any]],
) -> None:
    """After the update, not between microbatches or in a recomputation; FSDP2 hides updates."""
    for found in ranks:
        said = found["without steps"]
        before, after = said.pop("ddp")
        assert before == ""
        assert after.count("call fp4lab.set_step(model, step)") == 1
        assert all(messages == ["", ""] for messages in said.values())


def test_layers_that_are_sharded_by_themselves(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["turned back"] == (
            "layer '0.up' has become a FSDPLinear since it was converted; unconvert before "
            "fully_shard, or use `with fp4lab.disabled(model):`"
        )
        (row,) = (line for line in found["late conversion"].splitlines() if line.startswith("2 "))
        assert "unreachable" in row
        assert "it is sharded on its own; convert before fully_shard" in row
