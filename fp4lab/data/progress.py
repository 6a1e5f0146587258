"""How much of a text has been done: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from fp4lab.streams import forgiving

LINE_EVERY_S = 10.0

Advance = Callable[[int], None]


@contextmanager
def amount_progress(
    title: str, total: int | None, *, unit: str = "bytes", stream: TextIO | None = None
) -> Iterator[Advance]:
    """A function to be called with how many were done since its last call.

    Shown on `stream`, by default standard error; where that breaks nothing more is shown. `total`
    is None where it is not known.
    """
    stream = forgiving(stream or sys.stderr, OSError)
    if not stream.isatty():
        yield _Lines(title, total, unit, stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}" + ("" if total is None else f"/{total:,}") + f" {unit}"),
        TimeRemainingColumn(compact=True),
    )
    # It vanishes at its end, for what was done is told by the command.
    console = Console(file=stream)
    with Progress(*columns, console=console, refresh_per_second=4, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.update(task, advance=count)


class _Lines:
    def __init__(self, title: str, total: int | None, unit: str, stream: TextIO) -> None:
        self.title, self.unit, self.stream = title, unit, stream
        self.of = "" if total is None else f" of {total:,}"
        self.done = 0
        self.last = time.monotonic()

    def __call__(self, count: int) -> None:
        self.done += count
        if time.monotonic() - self.last >= LINE_EVERY_S:
            self.last = time.monotonic()
            print(f"{self.title}: {self.done:,}{self.of} {self.unit}", file=self.stream, flush=True)
