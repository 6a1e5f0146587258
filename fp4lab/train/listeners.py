"""What a person sees of a run: a bar on a terminal, plain lines elsewhere.

Both are listeners for `fit(on_event=...)`. Nothing is shown by the loop itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from fp4lab.streams import forgiving
from fp4lab.train.metrics import Event

Listener = Callable[[Event], None]


@contextmanager
def progress(
    steps: int, *, stream: TextIO | None = None, title: str = "train"
) -> Iterator[Listener]:
    """A listener that shows a run of so many steps on `stream` (by default standard error).

    Where the stream breaks, it shows no more, and the run goes on.
    """
    stream = forgiving(stream or sys.stderr, OSError)
    if not stream.isatty():
        yield PlainLines(steps, stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[numbers]}"),
    )
    # Four frames a second: drawing takes time from a training thread that may have one core.
    with Progress(*columns, console=Console(file=stream), refresh_per_second=4) as bar:
        task = bar.add_task(title, total=steps, numbers="")

        def listen(event: Event) -> None:
            if event["kind"] == "train":
                if not bar.tasks[0].completed:
                    # A resumed run's first steps were not made now: leave them out of its speed.
                    bar.reset(task, completed=event["step"] - 1)
                bar.update(task, completed=event["step"], numbers=_numbers(event))
            elif (line := _line(event)) is not None:
                bar.console.print(line, markup=False, highlight=False)

        yield listen


class PlainLines:
    """Writes a line for everything but training steps, and for those every `interval` seconds."""

    def __init__(
        self,
        steps: int,
        stream: TextIO,
        *,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps = steps
        self.stream = stream
        self.interval = interval
        self.clock = clock
        self._first: tuple[int, float] | None = None
        self._last = -float("inf")

    def __call__(self, event: Event) -> None:
        """Show one event."""
        line = self._training(event) if event["kind"] == "train" else _line(event)
        if line is not None:
            print(line, file=self.stream, flush=True)

    def _training(self, event: Event) -> str | None:
        now, step = self.clock(), event["step"]
        self._first = self._first or (step, now)
        if now - self._last < self.interval and step < self.steps:
            return None
        self._last = now
        text = f"step {step}/{self.steps}  {_numbers(event)}"
        done, seconds = step - self._first[0], now - self._first[1]
        if done == 0 or step == self.steps:
            return text
        return f"{text}  {clock(seconds / done * (self.steps - step))} left"


def _numbers(event: Event) -> str:
    speed = event["tokens_per_second"]
    text = f"loss {event['loss']:.4f}  lr {event['lr']:.2e}  {speed:,.0f} tokens/s"
    return f"{text}  MFU {event['mfu']:.1%}" if "mfu" in event else text


def _line(event: Event) -> str | None:
    step = event["step"]
    if event["kind"] == "eval":
        bits = f"  {event['bits_per_byte']:.4f} bits/byte" if "bits_per_byte" in event else ""
        return f"step {step}: held-out loss {event['loss']:.4f}{bits}"
    if event["kind"] in {"begin", "notice"}:
        return str(event["text"])
    if event["kind"] == "end" and event["reason"] not in {"finished", "non-finite"}:
        return f"step {step}: stopped by {event['reason']}; the same command goes on from here"
    return None


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any.

    >>> clock(61.2), clock(3600)
    ('1:01', '1:00:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
