"""What is to be compared, and what came out."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from fp4lab import report
from fp4lab.errors import InputError
from fp4lab.instruments.error_rows import LayerErrors
from fp4lab.recipes import Recipe
from fp4lab.report import words
from fp4lab.report.folder import REPORT
from fp4lab.report.summary import Summary
from fp4lab.train.config import FitConfig, check_threads
from fp4lab.train.task import Task
from fp4lab.train.world import choose_device


@dataclass(frozen=True)
class Plan:
    """What to compare, and how.

    `tasks` maps each seed to what is trained under it. `settings` are the values that must not
    change between two calls for the same folder, `facts` what the report tells its reader, section
    by section. `config` is the same for all runs but for the seed.

    Raises InputError for values that do not fit each other, and for a device that is not there.
    """

    tasks: Mapping[int, Task]
    recipes: Mapping[str, Recipe]
    baseline: str
    config: FitConfig
    folder: Path
    settings: Mapping[str, Any]
    facts: Mapping[str, Mapping[str, str]]
    jobs: int | None = None
    confidence: float = 0.95
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.baseline not in self.recipes:
            raise InputError(
                f"baseline={self.baseline!r} is none of the recipes {', '.join(self.recipes)};"
                " add it to them"
            )
        if self.jobs is not None and self.jobs < 1:
            raise InputError(f"jobs={self.jobs} is below 1; give the number of processes")
        if not 0.0 < self.confidence < 1.0:
            raise InputError(f"confidence={self.confidence} must lie between 0 and 1; use 0.95")
        check_threads(self.config.threads)
        choose_device(self.config.device)

    @property
    def parallel(self) -> int:
        """Runs at a time: one a core, or a single one on a GPU, which runs would only share."""
        if self.jobs is not None:
            most = self.jobs
        elif choose_device(self.config.device).type == "cuda":
            most = 1
        else:
            most = max(1, cores() // self.config.threads)
        return min(most, len(self.tasks) * len(self.recipes))


@dataclass(frozen=True)
class Comparison:
    """What a comparison found, and the folder where all of it lies.

    It prints as a table, on a terminal and in a notebook.
    """

    folder: Path
    summary: Summary
    errors: Mapping[str, LayerErrors]

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.folder / REPORT

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from words.warnings(self.summary)
        yield report.table(self.summary, options.max_width)

    def __str__(self) -> str:
        whole = report.table(self.summary)
        console = Console(width=report.needed(whole), color_system=None)
        with console.capture() as captured:
            console.print(whole)
        return "\n".join([*words.warnings(self.summary), captured.get()])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
