"""Progress of several runs at once, read from the `metrics.jsonl` that each of them writes.

On a terminal: a bar a run and one for all of them with the remaining time. Elsewhere: a line every
ten seconds. The remaining time is that of the last run to end: each goes on as fast as it did, and
those that wait start as slowly as the first did and are as fast as the others on average, no more
at a time than there are processes.
"""

from __future__ import annotations

import heapq
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from fp4lab.streams import forgiving
from fp4lab.studies.child import Job
from fp4lab.train import metrics
from fp4lab.train.folder import METRICS
from fp4lab.train.listeners import clock

LINE_EVERY = 10.0
#: a pace measured over less counts only where there is no other
SETTLED_S = 3.0


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
                # a resumed run replaced the file
                self._offset, self.step, self.loss = 0, 0, None
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

    def __init__(
        self, jobs: Sequence[Job], *, parallel: int = 1, console: Console | None = None
    ) -> None:
        self._console = console or messages()
        self._jobs = jobs
        self._parallel = parallel
        self._tails = {job.name: Tail(job.folder / METRICS) for job in jobs}
        for tail in self._tails.values():
            tail.read()
        self._paces: dict[str, _Pace] = {}
        self._start_s = 0.0  # from the start of a process to its first step
        self._started = self._spoke = self._polled = time.monotonic()
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
            names = ", ".join(job.name for job in self._jobs)
            at_once = min(self._parallel, len(self._jobs))
            self.say(f"{len(self._jobs)} runs, {at_once} at a time, {self._total} steps: {names}")
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
        self._read()
        left = self._left()
        if self._progress is None:
            if time.monotonic() - self._spoke >= LINE_EVERY:
                self._spoke = time.monotonic()
                self.say(self.line(left))
            return
        for job in self._jobs:
            tail = self._tails[job.name]
            self._progress.update(self._bars[job.name], completed=tail.step, note=_loss(tail))
        if "" in self._bars:
            self._progress.update(
                self._bars[""], completed=self._done, total=self._total, note=left
            )

    def line(self, left: str) -> str:
        """How many runs have ended and where each that has begun stands, in one line."""
        ended = sum(self._tails[job.name].step >= self._steps(job) for job in self._jobs)
        counts = [f"{ended} of {len(self._jobs)} done"] if len(self._jobs) > 1 else []
        parts = [
            f"{job.name} {self._tails[job.name].step}/{job.steps} {_loss(self._tails[job.name])}"
            for job in self._jobs
            if 0 < self._tails[job.name].step < job.steps
        ]
        elapsed = time.monotonic() - self._started
        return " | ".join([f"{elapsed:.0f} s", *counts, *parts, left or "starting"])

    def _left(self) -> str:
        if self._done >= self._total:
            return "measuring"
        seconds = self._seconds_left()
        return "" if seconds is None else f"{clock(seconds)} left"

    def _seconds_left(self) -> float | None:
        begun = {name: pace for name, pace in self._paces.items() if pace.steps}
        if not begun:
            return None
        # the first steps of a run, which loads and warms up, say little beside others
        settled = {name: pace for name, pace in begun.items() if pace.time >= SETTLED_S} or begun
        known = {name: pace.time / pace.steps for name, pace in settled.items()}
        usual = sum(known.values()) / len(known)
        free = [0.0] * self._parallel
        # Those that run have their process already.
        for job in sorted(self._jobs, key=lambda job: job.name not in self._paces):
            steps = max(0, self._steps(job) - self._tails[job.name].step)
            begin = free[0] + (self._start_s if free[0] and steps else 0.0)
            heapq.heapreplace(free, begin + steps * known.get(job.name, usual))
        return max(free)

    @property
    def _done(self) -> int:
        return sum(min(self._tails[job.name].step, job.steps) for job in self._jobs)

    def _read(self) -> None:
        now = time.monotonic()
        for name, tail in self._tails.items():
            before = tail.step
            tail.read()
            if tail.step < before:  # it goes on from a checkpoint
                self._paces[name] = _Pace(tail.step, now)
            elif tail.step > before:
                self._start_s = self._start_s or now - self._started
                pace = self._paces.setdefault(name, _Pace(before, self._polled))
                pace.steps, pace.time = tail.step - pace.first, now - pace.since
        self._polled = now


@dataclass
class _Pace:
    """How fast a run is since step `first`, which it had made at `since`."""

    first: int
    since: float
    steps: int = 0
    time: float = 0.0


def _loss(tail: Tail) -> str:
    return "" if tail.loss is None else f"loss {tail.loss:.3f}"
