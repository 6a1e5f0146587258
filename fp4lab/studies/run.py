"""One run of a comparison: train, then measure the trained model.

The measurements go to `measures.json` in the run's folder: the loss of every validation batch, for
the gap's sampling error, and the quantization errors of every layer. A run counts as done when both
this file and the loop's `result.json` are there.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp4lab.errors import InputError
from fp4lab.instruments.error_rows import LayerErrors
from fp4lab.instruments.gemm_errors import gemm_errors
from fp4lab.recipes import Recipe
from fp4lab.report.curves import read_curve
from fp4lab.specs.files import read_record, remove_leftovers, write_json
from fp4lab.studies.summarize import Finished
from fp4lab.train.checkpoint import available
from fp4lab.train.config import FitConfig
from fp4lab.train.evaluation import restored
from fp4lab.train.folder import CHECKPOINTS, METRICS, FitResult
from fp4lab.train.forward import reproducible
from fp4lab.train.loop import fit
from fp4lab.train.task import LanguageTask, Task
from fp4lab.train.world import choose_device, join

MEASURES = "measures.json"


@dataclass(frozen=True)
class Measures:
    """What measures.json holds."""

    batch_losses: tuple[float, ...]
    errors: LayerErrors

    @staticmethod
    def read(folder: Path) -> Measures:
        """The measures of a run; InputError if they are missing or damaged."""
        cure = "delete it, and the run is measured again"
        return read_record(folder / MEASURES, Measures, cure=cure)


@dataclass(frozen=True)
class RecipeRun:
    """Picklable work for the runner."""

    task: Task
    recipe: Recipe
    config: FitConfig

    def __call__(self, folder: Path) -> None:
        """Train in `folder`, or go on there, and measure.

        Raises KeyboardInterrupt where a signal asked the run to stop: its checkpoint is saved.
        """
        result = fit(
            self.task, recipe=self.recipe, config=self.config, folder=folder, on_event=_log
        )
        if not result.finished:
            if self.config.time_limit is not None:
                raise InputError(
                    f"time_limit={self.config.time_limit} ended the run after step {result.steps};"
                    " run the comparison again to go on"
                )
            raise KeyboardInterrupt
        if not (folder / MEASURES).is_file():
            remove_leftovers(folder)  # of a death while it was written
            write_json(folder / MEASURES, dataclasses.asdict(self._measure(folder)))

    def is_done(self, folder: Path) -> bool:
        """Whether `folder` holds this run, finished and measured."""
        result = FitResult.load(folder)
        return (
            result is not None
            and result.config_hash == self.config.hash
            and (folder / MEASURES).is_file()
        )

    def _measure(self, folder: Path) -> Measures:
        device = choose_device(self.config.device)
        with join(device) as world, reproducible(self.config, device):
            path = available(folder / CHECKPOINTS)[-1]
            forward, step = restored(path, self.task, self.recipe, self.config, world)
            losses = forward.validation_losses(step)
            last = step - 1
            batch = forward.batch(last, 0)
            errors = gemm_errors(forward.model, lambda: forward.loss(last, 0, batch))
        return Measures(tuple(losses), errors)


def _log(event: dict[str, Any]) -> None:
    """Warnings of the loop go to the run's log."""
    if event["kind"] == "notice":
        print(event["text"], file=sys.stderr)


def read_finished(folder: Path, task: Task) -> Finished:
    """The results of a run that is done, of a model that was trained on `task`."""
    result = FitResult.load(folder)
    assert result is not None
    if result.val_loss is None:
        raise InputError(f"{folder} has no validation loss; give validation batches")
    losses = read_curve(folder / METRICS).train.losses.tolist()
    return Finished(
        val_loss=result.val_loss,
        bits_per_byte=result.bits_per_byte,
        batch_losses=Measures.read(folder).batch_losses,
        start=losses[0] if losses else math.inf,
        lowest=min(losses, default=math.inf),
        guess=math.log(task.model.vocab_size) if isinstance(task, LanguageTask) else math.inf,
    )
