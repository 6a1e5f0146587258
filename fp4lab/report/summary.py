"""What a comparison found, as written to `summary.json` and read back to draw the report.

The classes are the schema: field names are the JSON's keys, tuples its arrays, None its null. A
number that does not exist (the gap of a failed run, the interval of one seed) is null, never NaN.
`SCHEMA_VERSION` rises when a reader of the old file would misread the new one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp4lab.errors import InputError
from fp4lab.train.files import read_json, write_json

SCHEMA_VERSION = 1
BASELINE = "baseline"
FAILED = "failed"
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
    `step_time_spread`.
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
    """The outcome of a comparison; `order` names the recipes by loss, best first, failed last."""

    baseline: str
    order: tuple[str, ...]
    recipes: dict[str, RecipeSummary]
    neighbours: tuple[Neighbours, ...]
    confidence: float
    notes: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION

    def write(self, path: Path) -> None:
        """Write the JSON; a reader never sees half of it."""
        write_json(path, dataclasses.asdict(self))

    @staticmethod
    def read(path: Path) -> Summary:
        """Read what `write` wrote; InputError for a missing or damaged file or another version."""
        if not path.is_file():
            raise InputError(f"{path} does not exist; give the folder of a finished comparison")
        record = read_json(path)
        if record.get("schema_version") != SCHEMA_VERSION:
            raise InputError(
                f"{path} has schema_version={record.get('schema_version')!r}, this fp4lab reads"
                f" {SCHEMA_VERSION}; run the comparison again"
            )
        return Summary(
            baseline=record["baseline"],
            order=tuple(record["order"]),
            recipes={name: _recipe(entry) for name, entry in record["recipes"].items()},
            neighbours=tuple(Neighbours(**_ranges(entry)) for entry in record["neighbours"]),
            confidence=record["confidence"],
            notes=tuple(record["notes"]),
        )


def _recipe(entry: Mapping[str, Any]) -> RecipeSummary:
    failed = tuple(Failure(**failure) for failure in entry["failed"])
    return RecipeSummary(**{**_ranges(entry), "failed": failed})


def _ranges(entry: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("interval", "interval_percent", "step_time_spread")
    return {key: tuple(v) if key in keys and v is not None else v for key, v in entry.items()}
