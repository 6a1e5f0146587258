"""The held-out loss of a checkpoint: the same number, to the bit, that its run reported there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from fp4lab import recipes
from fp4lab.errors import InputError, NonFiniteError
from fp4lab.instruments.nonfinite import CURE, first_nonfinite
from fp4lab.recipes import Recipe
from fp4lab.train import checkpoint as checkpoints
from fp4lab.train import toml
from fp4lab.train.config import FitConfig, RunConfig
from fp4lab.train.folder import CHECKPOINTS, CONFIG, RECIPE, RunRecord
from fp4lab.train.forward import Forward, reproducible
from fp4lab.train.metrics import Event
from fp4lab.train.task import LanguageTask, MeasuredTask, Task, to_device
from fp4lab.train.tensors import restore_model
from fp4lab.train.world import World, choose_device, join


@dataclass(frozen=True)
class Evaluation:
    """The held-out loss of one checkpoint."""

    checkpoint: Path
    #: Updates it was saved after.
    step: int
    #: Mean loss in nats per target.
    loss: float
    #: None for a task that is not about text.
    bits_per_byte: float | None


def evaluate(
    path: Path,
    *,
    task: Task | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> Evaluation:
    """Evaluate a checkpoint folder, or the newest checkpoint of a run's folder.

    The run's own config and recipe are used; `task` is needed only for a run that was not described
    by a RunConfig. Raises InputError if there is no checkpoint or it is damaged, for no other is
    taken in its place, and if the text is not the one of the run.
    """
    chosen = _choose(path)
    run = chosen.parent.parent
    config = dataclasses.replace(_config(run, task), device=device)
    if task is None:
        assert isinstance(config, RunConfig)
        task = LanguageTask.from_config(config)
    _check_data(run, task)
    target = choose_device(device)
    with join(target) as world, reproducible(config, target):
        forward, step = restored(chosen, task, _recipe(run), config, world)
        losses = forward.validation_losses(step)
        if not losses:
            raise InputError("task has no held-out batches; give one whose validation() has some")
        event = eval_event(forward, losses, step)
    return Evaluation(chosen, step, event["loss"], event.get("bits_per_byte"))


def restored(
    path: Path, task: Task, recipe: Recipe | None, config: FitConfig, world: World
) -> tuple[Forward, int]:
    """The model of a checkpoint, and the updates that were made before it."""
    saved = checkpoints.load(path)
    forward = Forward.build(task, recipe, config, world)
    restore_model(forward.model, saved.tensors["model"], saved.state.tied, source=path)
    return forward, saved.step


def eval_event(forward: Forward, losses: Sequence[float], step: int) -> Event:
    """The mean of the losses of all held-out batches, as a line of metrics.jsonl.

    Raises NonFiniteError, with the layer and the tensor, if one of them is not finite.
    """
    for index, loss in enumerate(losses):
        if not math.isfinite(loss):
            raise _nonfinite(forward, index, step)
    mean = math.fsum(losses) / len(losses)
    event: Event = {"kind": "eval", "step": step, "loss": mean}
    if isinstance(forward.task, MeasuredTask):
        event["bits_per_byte"] = forward.task.bits_per_byte(mean)
    return event


def _nonfinite(forward: Forward, index: int, step: int) -> NonFiniteError:
    batch = to_device(list(forward.task.validation())[index], forward.world.device)

    def loss() -> Tensor:
        return forward.loss(max(0, step - 1), index, batch).detach()

    forward.model.eval()
    finding = first_nonfinite(forward.model, loss)
    forward.model.train()
    where = f"{finding}; {CURE}" if finding else "none on a second run: suspect the hardware"
    return NonFiniteError(
        f"step {step}: held-out batch {index} has no finite loss; first non-finite: {where}"
    )


def _choose(path: Path) -> Path:
    if (path / "manifest.json").exists() or path.name.startswith("step-"):
        return path
    if not path.is_dir():
        raise InputError(f"checkpoint={path} does not exist; give a run's folder or a checkpoint")
    found = checkpoints.available(path / CHECKPOINTS)
    if not found:
        raise InputError(f"checkpoint={path} holds no checkpoint; give the folder of a run")
    return found[-1]


def _config(run: Path, task: Task | None) -> FitConfig:
    path = run / CONFIG
    if not path.exists():
        raise InputError(f"{path} is missing; a checkpoint is evaluated in its run's folder")
    table = toml.read(path)
    if "model" in table:
        return toml.from_table(table, RunConfig)
    if task is None:
        raise InputError(f"{path} does not say what was trained; give task=")
    return toml.from_table(table, FitConfig)


def _check_data(run: Path, task: Task) -> None:
    if not isinstance(task, MeasuredTask):
        return
    before = RunRecord.load(run).data_sha256
    now = task.identity().get("sha256")
    if before != now:
        raise InputError(
            f"the text has sha256 {str(now)[:12]}, but the run in {run} had {str(before)[:12]}; "
            "evaluate where the run's text is"
        )


def _recipe(run: Path) -> Recipe | None:
    path = run / RECIPE
    if not path.exists():
        return None
    return recipes.read(path)
