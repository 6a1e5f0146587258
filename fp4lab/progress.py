"""How much of some work is done: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from fp4lab.streams import forgiving

LINE_EVERY_S = 10.0


class Advance(Protocol):
    """What is called after each part of the work."""

    def __call__(self, count: int, note: str = "", /) -> None:
        """Show that `count` more are done, and a note beside."""


def silent(count: int, note: str = "", /) -> None:
    """An `Advance` that shows nothing."""


@contextmanager
def shown(
    title: str, total: int | None, *, unit: str = "bytes", stream: TextIO | None = None
) -> Iterator[Advance]:
    """Show how much of `total` is done, as what this gives is told.

    Shown on `stream`, by default standard error; where that breaks nothing more is shown. `total`
    is None where it is not known.
    """
    stream = forgiving(stream or sys.stderr, OSError)
    if not stream.isatty():
        yield _Lines(title, total, unit, stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    of = "" if total is None else f"/{total:,}"
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if unit == "bytes" else TextColumn("{task.completed:,}" + f"{of} {unit}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}", markup=False),
    )
    # It vanishes at its end, for what was done is told by the command.
    console = Console(file=stream)
    with Progress(*columns, console=console, refresh_per_second=4, transient=True) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda count, note="": bar.update(task, advance=count, note=note)


class _Lines:
    def __init__(self, title: str, total: int | None, unit: str, stream: TextIO) -> None:
        self.title, self.unit, self.stream = title, unit, stream
        self.of = "" if total is None else f" of {total:,}"
        self.done = 0
        self.last = time.monotonic()

    def __call__(self, count: int, note: str = "", /) -> None:
        self.done += count
        if time.monotonic() - self.last >= LINE_EVERY_S:
            self.last = time.monotonic()
            line = f"{self.title}: {self.done:,}{self.of} {self.unit}"
            print(f"{line}, {note}" if note else line, file=self.stream, flush=True)
