"""metrics.jsonl: one JSON object a line, in the order of the run.

    {"kind": "train", "step": 3, "loss": 4.9, "lr": ..., "grad_norm": ..., "tokens": ..., <timing>}
    {"kind": "eval", "step": 200, "loss": 2.1, "bits_per_byte": 3.0}
    {"kind": "notice", "step": 7, "text": "step 7: the gradient norm is exactly zero, ..."}
    {"kind": "end", "step": 2000, "reason": "finished"}

`step` counts the updates made so far. The fields in `TIMING` depend on the machine's mood; all
others come out again to the same bits when a killed run is resumed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fp4lab.specs.files import naming, write_text

Event = dict[str, Any]
TIMING = ("step_time", "tokens_per_second", "mfu")


def read(path: Path) -> list[Event]:
    """All whole lines of a metrics file; a last line cut off by a kill is left out."""
    found = (parse(line) for line in path.read_bytes().splitlines())
    return [event for event in found if event is not None]


def parse(line: bytes) -> Event | None:
    """The event in one line, None if it holds none.

    >>> parse(b'{"kind": "eval", "step": 3, "loss": 2.5}')
    {'kind': 'eval', 'step': 3, 'loss': 2.5}
    >>> parse(b'{"kind": "eval", "st')
    """
    try:
        event = json.loads(line)
    except ValueError:
        return None
    is_event = isinstance(event, dict) and "kind" in event and isinstance(event.get("step"), int)
    return event if is_event else None


def numbers(event: Event) -> dict[str, float]:
    """The numbers of an event under names for other logs, without its step.

    >>> numbers({"kind": "eval", "step": 3, "loss": 2.5})
    {'eval/loss': 2.5}
    """
    return {
        f"{event['kind']}/{key}": value
        for key, value in event.items()
        if key != "step" and isinstance(value, (int, float))
    }


class MetricsFile:
    """A metrics file opened to go on after `step` updates.

    What an earlier process wrote beyond that step, and how it ended, is dropped first: the run will
    write it again. Every line is handed to the operating system at once, so a killed process loses
    none that a checkpoint counts on.
    """

    def __init__(self, path: Path, *, step: int) -> None:
        old = read(path) if path.exists() else []
        kept = [event for event in old if event["step"] <= step and event["kind"] != "end"]
        write_text(path, "".join(_line(event) for event in kept))
        self.path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, event: Event) -> None:
        """Add one line."""
        with naming(self.path):
            self._file.write(_line(event))
            self._file.flush()

    def sync(self) -> None:
        """Force all lines onto the disk, before a checkpoint that supposes them."""
        with naming(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        with naming(self.path):
            self._file.close()


def _line(event: Event) -> str:
    return json.dumps(event, allow_nan=False) + "\n"
