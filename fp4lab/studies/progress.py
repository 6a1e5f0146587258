"""Progress of several runs at once, read from the `metrics.jsonl` that each of them writes.

On a terminal: a bar a run and one for all of them with the remaining time. Elsewhere: a line every
ten seconds. The remaining time is what is left over the speed since the first step, all runs
together.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from fp4lab.streams import forgiving
from fp4lab.studies.child import Job
from fp4lab.train import metrics
from fp4lab.train.folder import METRICS

LINE_EVERY = 10.0


class Tail:
    """The newest step and loss in a growing file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._file_id = 0
        self.step = 0
        self.loss: float | None = None

    def read(self) -> None:
        """Take in what was written since the last call; only whole lines count."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._file_id or status.st_size < self._offset:
                self._offset = 0  # a resumed run replaced the file
            self._file_id = status.st_ino
            file.seek(self._offset)
            chunk = file.read()
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            event = metrics.parse(line)
            if event is not None and event["kind"] == "train":
                self.step, self.loss = event["step"], event.get("loss")


def messages() -> Console:
    """Where a comparison says how far it is: stderr, in lines in a notebook too.

    rich would draw there with ipywidgets, or warn at every frame that they are not installed.
    """
    return Console(file=forgiving(sys.stderr, OSError), force_jupyter=False)


class RunsProgress:
    """A context that shows how far the jobs are; `poll` and `say` may be called from any thread."""

    def __init__(self, jobs: Sequence[Job], *, console: Console | None = None) -> None:
        self._console = console or messages()
        self._jobs = jobs
        self._tails = {job.name: Tail(job.folder / METRICS) for job in jobs}
        self._started = self._spoke = self._since = time.monotonic()
        self._before = self._read()
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}
        self._failed: set[str] = set()
        if self._console.is_terminal and jobs:
            self._progress = self._draw()

    def _draw(self) -> Progress:
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._console,
        )
        for job in self._jobs:
            self._bars[job.name] = progress.add_task(job.name, total=job.steps, note="")
        if len(self._jobs) > 1:
            self._bars[""] = progress.add_task("all", total=self._total, note="")
        return progress

    @property
    def _total(self) -> int:
        return sum(self._steps(job) for job in self._jobs)

    def _steps(self, job: Job) -> int:
        """The steps to expect of a job: of a failed one no more than it did."""
        return self._tails[job.name].step if job.name in self._failed else job.steps

    def __enter__(self) -> RunsProgress:
        if self._progress:
            self._progress.start()
        elif self._jobs:
            self.say(f"{len(self._jobs)} runs, {self._total} steps in all")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress:
            self.poll()
            self._progress.stop()

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def failed(self, name: str, reason: str) -> None:
        """Say that a run failed, and expect no more of its steps."""
        self.say(f"{name} failed: {reason}")
        self._failed.add(name)

    def poll(self) -> None:
        """Read what the runs wrote and show it."""
        done = self._read()
        if self._progress:
            for job in self._jobs:
                self._progress.update(
                    self._bars[job.name],
                    completed=self._tails[job.name].step,
                    note=_loss(self._tails[job.name]),
                )
            if "" in self._bars:
                left = self._remaining(done)
                self._progress.update(self._bars[""], completed=done, total=self._total, note=left)
            return
        left = self._remaining(done)
        if time.monotonic() - self._spoke >= LINE_EVERY:
            self._spoke = time.monotonic()
            self.say(self.line(left))

    def line(self, left: str) -> str:
        """Where every run that has begun stands, in one line."""
        parts = [
            f"{job.name} {self._tails[job.name].step}/{job.steps} {_loss(self._tails[job.name])}"
            for job in self._jobs
            if 0 < self._tails[job.name].step < job.steps
        ]
        elapsed = time.monotonic() - self._started
        return " | ".join([f"{elapsed:.0f} s", *parts, left or "starting"])

    def _remaining(self, done: int) -> str:
        if done >= self._total:
            return "measuring"
        now = time.monotonic()
        if done <= self._before:
            # Nothing yet: processes start, or a resumed run went back to its checkpoint.
            self._before, self._since = done, now
            return ""
        speed = (done - self._before) / max(now - self._since, 1e-9)
        seconds = round((self._total - done) / speed)
        return f"{seconds // 60}:{seconds % 60:02d} left"

    def _read(self) -> int:
        for tail in self._tails.values():
            tail.read()
        return sum(min(self._tails[job.name].step, job.steps) for job in self._jobs)


def _loss(tail: Tail) -> str:
    return "" if tail.loss is None else f"loss {tail.loss:.3f}"
