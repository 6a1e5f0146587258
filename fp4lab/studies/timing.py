"""How much longer a step takes, measured fairly.

Runs in parallel take cores and caches from each other, so their own step times say little about
the recipe. This pass steps all recipes in one process in turn, A B C A B C ..., each on its own
model and the same batches: a round sees the same machine, so a recipe's time is divided by the
baseline's of the same round, and the median ratio with its quartiles is reported. A warm-up round
is thrown away. It ends after `MOST_ROUNDS` rounds or, once there are `LEAST_ROUNDS`, when
`budget_s` seconds are over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fp4lab.recipes import Recipe
from fp4lab.train.config import FitConfig
from fp4lab.train.forward import Forward, reproducible
from fp4lab.train.task import Task
from fp4lab.train.update import Updater
from fp4lab.train.world import choose_device, join

LEAST_ROUNDS, MOST_ROUNDS = 3, 30
BUDGET_S = 10.0


@dataclass(frozen=True)
class StepTime:
    """Median seconds of a step, median ratio to the baseline's, and that ratio's quartiles."""

    seconds: float
    ratio: float
    spread: tuple[float, float]
    rounds: int


def step_times(
    steps: Mapping[str, Callable[[int], object]],
    baseline: str,
    *,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, StepTime]:
    """Time `steps[name](round)`, each one training step, against `steps[baseline]`.

    The first call of each is not counted.
    """
    end = clock() + budget_s
    for step in steps.values():
        step(0)
    rounds: list[dict[str, float]] = []
    while len(rounds) < MOST_ROUNDS and (len(rounds) < LEAST_ROUNDS or clock() < end):
        rounds.append({name: _time(step, len(rounds) + 1, clock) for name, step in steps.items()})
    return {name: _summary([r[name] for r in rounds], [r[baseline] for r in rounds])
            for name in steps}  # fmt: skip


def expected_seconds(round_s: float) -> float:
    """How long timing takes if a round takes so long."""
    return round_s + max(LEAST_ROUNDS * round_s, min(MOST_ROUNDS * round_s, BUDGET_S))


def _time(step: Callable[[int], object], index: int, clock: Callable[[], float]) -> float:
    before = clock()
    step(index)
    return clock() - before


def _summary(times: list[float], baseline: list[float]) -> StepTime:
    ratios = np.divide(times, baseline)
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return StepTime(
        seconds=float(np.median(times)),
        ratio=float(middle),
        spread=(float(low), float(high)),
        rounds=len(times),
    )


def time_recipes(
    task: Task,
    recipes: Mapping[str, Recipe],
    baseline: str,
    config: FitConfig,
    *,
    budget_s: float = BUDGET_S,
) -> dict[str, StepTime]:
    """Time whole updates (forward, backward, clipping, optimizer) of new models under `recipes`."""
    device = choose_device(config.device)
    with join(device) as world, reproducible(config, device):
        updaters = {
            name: Updater(Forward.build(task, recipe, config, world))
            for name, recipe in recipes.items()
        }
        steps = {name: updater.update for name, updater in updaters.items()}
        return step_times(steps, baseline, budget_s=budget_s)
