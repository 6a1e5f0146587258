"""How far a walk through tensors is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from fp4lab.streams import forgiving

#: seconds between two lines
INTERVAL = 10.0
#: what is called with a tensor's name and bytes before it is read
Step = Callable[[str, int], None]


def silent(name: str, nbytes: int) -> None:
    """Shows nothing."""


@contextmanager
def shown(
    title: str,
    total: int,
    *,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Step]:
    """Show `total` bytes of work on `stream` (by default standard error), which may break."""
    stream = forgiving(stream or sys.stderr, OSError)
    if not stream.isatty():
        yield _lines(title, total, stream, clock)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[tensor]}", markup=False),
    )
    console = Console(file=stream)
    with Progress(*columns, console=console, refresh_per_second=4, transient=True) as bar:
        task = bar.add_task(title, total=total, tensor="")
        before = 0

        def step(name: str, nbytes: int) -> None:
            nonlocal before
            bar.update(task, advance=before, tensor=name)
            before = nbytes

        yield step


def _lines(title: str, total: int, stream: TextIO, clock: Callable[[], float]) -> Step:
    last, done, before = clock(), 0, 0

    def step(name: str, nbytes: int) -> None:
        nonlocal last, done, before
        done, before, now = done + before, nbytes, clock()
        if now - last >= INTERVAL:
            last = now
            print(f"{title}: {done / max(total, 1):.0%}, {name}", file=stream, flush=True)

    return step
