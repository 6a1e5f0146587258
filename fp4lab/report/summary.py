"""What a comparison found, as written to `summary.json` and read back to draw the report.

The classes are the schema: field names are the JSON's keys, tuples its arrays, None its null. A
number that does not exist (the gap of a failed run, the interval of one seed) is null, never NaN.
`SCHEMA_VERSION` rises when a reader of the old file would misread the new one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev

from fp4lab.errors import InputError
from fp4lab.specs.files import read_record, write_json

SCHEMA_VERSION = 1
BASELINE = "baseline"
FAILED = "failed"
DIVERGED = "diverged"
NO_BASELINE = "no gap: the baseline failed"

Range = tuple[float, float]


@dataclass(frozen=True)
class Failure:
    """A run that did not finish, and why."""

    seed: int
    reason: str


@dataclass(frozen=True)
class RecipeSummary:
    """One recipe over its seeds; losses in nats, gaps to the baseline over the seeds both have.

    `seeds` counts the pairs behind `gap` (for the baseline, its finished runs), `validation_error`
    is the standard error of the gap from the choice of validation batches alone, and
    `step_time_ratio` the median step time over the baseline's with its quartiles in
    `step_time_spread`. `diverged` names the seeds that reached their end with a useless loss.
    """

    val_loss: float | None
    val_losses: dict[str, float]
    bits_per_byte: float | None
    gap: float | None
    gap_percent: float | None
    interval: Range | None
    interval_percent: Range | None
    seeds: int
    verdict: str
    validation_error: float | None
    step_time_ratio: float | None
    step_time_spread: Range | None
    failed: tuple[Failure, ...]
    diff: str
    diverged: tuple[int, ...] = ()

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the final loss between seeds; None for one seed."""
        losses = list(self.val_losses.values())
        return stdev(losses) if len(losses) > 1 else None

    def __post_init__(self) -> None:
        if not all(seed.isdecimal() for seed in self.val_losses):
            raise InputError(f"val_losses={self.val_losses} should have seeds for keys")


@dataclass(frozen=True)
class Neighbours:
    """Two recipes next to each other in the order of loss: `gap` is worse minus better, paired."""

    better: str
    worse: str
    gap: float | None
    interval: Range | None
    verdict: str


@dataclass(frozen=True)
class Summary:
    """The outcome of a comparison; `order` names the recipes by loss, best first, failed last.

    `warnings` are what the runs differ in beside recipe and seed, a sentence each.
    """

    baseline: str
    order: tuple[str, ...]
    recipes: dict[str, RecipeSummary]
    neighbours: tuple[Neighbours, ...]
    confidence: float
    notes: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def spread(self) -> float | None:
        """The standard deviation of the baseline's loss between seeds; None for one seed."""
        return self.recipes[self.baseline].deviation

    def __post_init__(self) -> None:
        if {*self.order, self.baseline} != self.recipes.keys():
            raise InputError(f"order={self.order} does not name the recipes {[*self.recipes]}")

    def write(self, path: Path) -> None:
        """Write the JSON; a reader never sees half of it."""
        write_json(path, dataclasses.asdict(self))

    @staticmethod
    def read(path: Path) -> Summary:
        """Read what `write` wrote; InputError for a missing or damaged file or another version."""
        if not path.is_file():
            raise InputError(f"{path} does not exist; give the folder of a finished comparison")
        return read_record(path, Summary, cure="run the comparison again", version=SCHEMA_VERSION)
