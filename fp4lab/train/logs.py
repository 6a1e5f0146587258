"""The numbers of a run in TensorBoard and Weights & Biases, beside metrics.jsonl.

Neither ever ends a run: what goes wrong there is told once, and the run goes on without it. A run
that is resumed goes on in the same place, with every number once. TensorBoard drops what an earlier
process wrote beyond the step of the checkpoint (`purge_step`), as the run does. `wandb_log` tells
what W&B needs for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fp4lab.errors import optional
from fp4lab.train.config import FitConfig
from fp4lab.train.metrics import Event, numbers
from fp4lab.train.wandb_log import Wandb, wandb_module

TENSORBOARD = "tensorboard"


class Log(Protocol):
    """Something that is told the numbers of a run."""

    def write(self, event: Event) -> None:
        """Take in one event."""

    def close(self) -> None:
        """Called once, however the run ends."""


def check_installed(config: FitConfig) -> None:
    """InputError if a log is asked for whose package is missing."""
    if config.tensorboard:
        _tensorboard()
    if config.wandb is not None:
        wandb_module(config)


class Logs:
    """The logs that a config asks for, open from here to `close`.

    `step` is that of the checkpoint that the run goes on from, `history` what metrics.jsonl holds
    up to there; `report` gets what goes wrong.
    """

    def __init__(
        self,
        config: FitConfig,
        folder: Path,
        *,
        step: int,
        history: Sequence[Event],
        report: Callable[[str], None],
    ) -> None:
        self._report = report
        self._open: dict[str, Log] = {}
        if config.tensorboard:
            self._try("TensorBoard", lambda: TensorBoard(folder / TENSORBOARD, step=step))
        if config.wandb is not None:
            self._try("Weights & Biases", lambda: Wandb(config, folder, history=history))

    def write(self, event: Event) -> None:
        """Tell all of them; one that fails is not told again."""
        for name, log in list(self._open.items()):
            try:
                log.write(event)
            except Exception as error:
                self._lose(name, error)

    def close(self) -> None:
        """Close all of them."""
        for name, log in list(self._open.items()):
            try:
                log.close()
            except Exception as error:
                self._lose(name, error)
        self._open.clear()

    def _try(self, name: str, make: Callable[[], Log]) -> None:
        try:
            self._open[name] = make()
        except Exception as error:
            self._lose(name, error)

    def _lose(self, name: str, error: Exception) -> None:
        log = self._open.pop(name, None)
        if log is not None:
            with contextlib.suppress(Exception):
                log.close()
        what = " ".join(str(error).split()) or type(error).__name__
        self._report(f"{name} failed, and the run goes on without it: {what}")


class TensorBoard:
    """Event files in a folder; those of an earlier process count up to `step`."""

    def __init__(self, folder: Path, *, step: int) -> None:
        module = _tensorboard()
        self._writer = module.SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, event: Event) -> None:
        """Add the numbers of an event; a checkpoint writes them out, for a run counts on it."""
        for key, value in numbers(event).items():
            self._writer.add_scalar(key, value, event["step"])
        if event["kind"] == "checkpoint":
            self._writer.flush()

    def close(self) -> None:
        """Write out the rest."""
        self._writer.close()


def _tensorboard() -> Any:
    return optional("torch.utils.tensorboard", argument="tensorboard=True", package="tensorboard")
