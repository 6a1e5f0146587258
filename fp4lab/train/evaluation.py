"""The loss of a checkpoint: on held-out text the same number, to the bit, that its run reported."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fp4lab.data import bits_per_byte
from fp4lab.errors import InputError
from fp4lab.recipes import Recipe
from fp4lab.train import checkpoint as checkpoints
from fp4lab.train.config import FitConfig, RunConfig
from fp4lab.train.folder import CONFIG, RunRecord
from fp4lab.train.forward import Forward, reproducible
from fp4lab.train.metrics import Event
from fp4lab.train.other_text import OtherText, mean_loss
from fp4lab.train.task import LanguageTask, MeasuredTask, Task, to_device
from fp4lab.train.tensors import restore_model
from fp4lab.train.trained import (
    choose,
    fit_config,
    language_config,
    own_recipe,
    own_tokenizer,
    run_of,
)
from fp4lab.train.world import World, choose_device, join


@dataclass(frozen=True)
class Evaluation:
    """The loss of one checkpoint on held-out or other text."""

    checkpoint: Path
    #: Updates it was saved after.
    step: int
    #: Mean loss in nats per target.
    loss: float
    #: None for a task that is not about text.
    bits_per_byte: float | None
    #: Targets that the loss is the mean of, on other text.
    tokens: int | None = None


def evaluate(
    path: str | Path,
    *,
    data: str | Path | None = None,
    windows: int | None = None,
    task: Task | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    on_tokens: Callable[[int], None] | None = None,
) -> Evaluation:
    """Evaluate a checkpoint folder, or the newest checkpoint of a run's folder.

    The run's own config, recipe and tokenizer are used. Without `data` the loss is that on the
    run's held-out text; `task` is needed only for a run that was not described by a RunConfig. Else
    `data` is other text: a folder, a file, or shards of the same tokenizer, of which the held-out
    part is taken. All of it is read in windows as long as those of the training, or `windows` of
    them, spread evenly. `on_tokens` is told how many targets were done since its last call.

    Raises InputError if there is no checkpoint or it is damaged, for no other is taken in its
    place, if the text is not the one of the run, and for other text that cannot be read.
    """
    chosen = choose(Path(path))
    run = run_of(chosen)
    if data is not None:
        return _evaluate_text(chosen, str(data), windows, device, on_tokens)
    if windows is not None:
        raise InputError(f"windows={windows} is for other text; give data=, or leave it out")
    config = dataclasses.replace(fit_config(run), device=device)
    if task is None:
        if not isinstance(config, RunConfig):
            raise InputError(f"{run / CONFIG} does not say what was trained; give task=")
        task = LanguageTask.from_config(config)
    _check_data(run, task)
    target = choose_device(device)
    with join(target) as world, reproducible(config, target):
        forward, step = restored(chosen, task, own_recipe(run), config, world)
        losses = forward.validation_losses(step)
        if not losses:
            raise InputError("task has no held-out batches; give one whose validation() has some")
        event = eval_event(forward, losses, step)
    return Evaluation(chosen, step, event["loss"], event.get("bits_per_byte"))


def _evaluate_text(
    chosen: Path,
    data: str,
    windows: int | None,
    device: Literal["auto", "cpu", "cuda"],
    on_tokens: Callable[[int], None] | None,
) -> Evaluation:
    run = run_of(chosen)
    tokenizer = own_tokenizer(run)
    # The last window may be of any length.
    config = dataclasses.replace(language_config(run), device=device, ragged="pad")
    task = LanguageTask.without_text(config, tokenizer)
    text = OtherText.read(data, tokenizer)
    batches = text.batches(task.sequence_length, task.batch_size, windows)
    target = choose_device(device)
    with join(target) as world, reproducible(config, target):
        forward, step = restored(chosen, task, own_recipe(run), config, world)
        loss, count = mean_loss(forward, step, batches, on_tokens or (lambda _: None))
    return Evaluation(chosen, step, loss, bits_per_byte(loss, text.tokens_per_byte), count)


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
            batch = to_device(list(forward.task.validation())[index], forward.world.device)
            raise forward.nonfinite(index, step, batch)
    mean = math.fsum(losses) / len(losses)
    event: Event = {"kind": "eval", "step": step, "loss": mean}
    if isinstance(forward.task, MeasuredTask):
        event["bits_per_byte"] = forward.task.bits_per_byte(mean)
    return event


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
