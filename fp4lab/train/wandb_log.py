"""A run in Weights & Biases, one there however often it is interrupted.

W&B takes numbers in the order of their steps and forgets none. So it is told each step once: what
an earlier process told and closed is noted in wandb.json, what the server has is asked for, and the
rest is told again from metrics.jsonl. A process that was killed offline leaves a folder of which an
unknown part was written; once all of it has been told again that folder is deleted, unless it was
synchronized with the server before (then a part of it may be there twice).
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp4lab.errors import optional
from fp4lab.specs.files import read_record, write_json
from fp4lab.train.config import FitConfig
from fp4lab.train.metrics import Event, numbers

RECORD = "wandb.json"
DEFAULT_PROJECT = "fp4lab"
#: that a run waits for the network at its start, and ten times as long at its end
TIMEOUT_S = 30


@dataclass(frozen=True, kw_only=True)
class WandbRecord:
    """What wandb.json holds."""

    #: of the run there
    id: str
    #: up to which all has been told and closed
    step: int = 0
    #: folders, below the run's own, of processes that are still going or were killed
    open: tuple[str, ...] = ()


class Wandb:
    """Tells a run of W&B the numbers, under the step of each."""

    def __init__(self, config: FitConfig, folder: Path, *, history: Sequence[Event]) -> None:
        module = wandb_module(config)
        self._folder, path = folder, folder / RECORD
        cure = "delete it, and the run begins anew in W&B"
        old = WandbRecord(id=secrets.token_hex(8))
        if path.is_file():
            old = read_record(path, WandbRecord, cure=cure)
        self._run = module.init(
            project=config.wandb,
            group=config.wandb_group,
            name=folder.resolve().name,
            id=old.id,
            resume="allow",
            dir=str(folder),
            config=dataclasses.asdict(config),
            # Beside a run of the user's own, and beside others of a comparison in one process.
            reinit="create_new",
            settings=module.Settings(
                silent=True,
                console="off",
                init_timeout=TIMEOUT_S,
                login_timeout=TIMEOUT_S,
                finish_timeout=10 * TIMEOUT_S,
            ),
        )
        # The server's next step, where there is a server and it knows the run.
        self._first = max(old.step + 1, self._run.step if self._run.resumed else 0)
        self._step = old.step
        here = Path(self._run.dir).resolve().parent.relative_to(folder.resolve())
        self._record = dataclasses.replace(old, open=(*old.open, str(here)))
        write_json(path, dataclasses.asdict(self._record))
        for event in history:
            self.write(event)
        for name in old.open:
            _delete_unsynchronized(folder / name)

    def write(self, event: Event) -> None:
        """Tell the numbers of an event, unless they were told before."""
        found = numbers(event)
        if found and event["step"] >= self._first:
            self._run.log(found, step=event["step"])
            self._step = max(self._step, event["step"])

    def close(self) -> None:
        """Finish the run there, and note what it was told."""
        self._run.finish()
        closed = dataclasses.replace(self._record, step=self._step, open=())
        write_json(self._folder / RECORD, dataclasses.asdict(closed))


def wandb_module(config: FitConfig) -> Any:
    """The package; InputError if it is missing."""
    return optional("wandb", argument=f"wandb={config.wandb!r}", package="wandb")


def _delete_unsynchronized(folder: Path) -> None:
    # Only an offline folder is known to be on no server.
    if folder.name.startswith("offline-run-") and not any(folder.glob("*.synced")):
        shutil.rmtree(folder, ignore_errors=True)
