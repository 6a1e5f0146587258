"""A comparison's folder: which files it holds, and reading them for the report.

summary.json     gaps, intervals, verdicts, step times (`report.summary`)
errors.json      quantization errors of every layer, a table a recipe
comparison.json  what is compared: the settings that must not change, and facts for the reader
runs/            a folder a run, `<recipe>-seed<k>`, as `fp4lab.train` writes it
logs/            what each run printed, and why it failed
report.html      the page that shows all this
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp4lab.errors import InputError
from fp4lab.instruments.error_rows import LayerErrors
from fp4lab.recipes import Recipe, read
from fp4lab.report.curves import Curve, read_curve
from fp4lab.report.differences import RunFacts, is_run, read_run
from fp4lab.report.summary import Summary
from fp4lab.specs.files import read_record, write_json
from fp4lab.train.folder import CONVERSION, METRICS, RECIPE

SUMMARY = "summary.json"
ERRORS = "errors.json"
COMPARISON = "comparison.json"
LOGS = "logs"
RUNS = "runs"
REPORT = "report.html"

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ComparisonRecord:
    """What comparison.json holds."""

    #: Values that must not change between two calls for the same folder.
    settings: dict[str, Any]
    #: The hash of every recipe, which must not change either.
    recipes: dict[str, str]
    #: Threads of a run.
    threads: int
    #: What the report tells its reader, section by section.
    facts: dict[str, dict[str, str]]
    schema_version: int = SCHEMA_VERSION

    def write(self, folder: Path) -> None:
        """Write the file."""
        write_json(folder / COMPARISON, dataclasses.asdict(self))

    @staticmethod
    def read(folder: Path) -> ComparisonRecord:
        """Read the file; InputError if it is missing, damaged or of another version."""
        cure = "restore a copy, or give a new folder"
        return read_record(folder / COMPARISON, ComparisonRecord, cure=cure, version=SCHEMA_VERSION)


@dataclass(frozen=True)
class _Errors:
    """What errors.json holds."""

    recipes: dict[str, LayerErrors]


def run_folder(folder: Path, recipe: str, seed: int) -> Path:
    """The folder of one run."""
    return folder / RUNS / f"{recipe}-seed{seed}"


@dataclass(frozen=True)
class Findings:
    """Everything the report shows."""

    summary: Summary
    errors: dict[str, LayerErrors]
    facts: dict[str, dict[str, str]]
    curves: dict[str, dict[int, Curve]]
    #: Each recipe, and what each layer got from it, as its first run recorded them.
    recipes: dict[str, Recipe]
    conversions: dict[str, str]
    #: How each run that finished was made, by the name of its folder.
    runs: dict[str, RunFacts]

    @property
    def seeds(self) -> list[int]:
        """The seeds of all runs."""
        return sorted({seed for runs in self.curves.values() for seed in runs})


def read_findings(folder: Path) -> Findings:
    """Read a comparison's folder; InputError where it is none, or has not ended."""
    if (folder / COMPARISON).is_file() and not (folder / SUMMARY).is_file():
        raise InputError(
            f"{folder} holds a comparison that has not ended; run its command once more, with "
            f"--out {folder}: it goes on there and writes the report"
        )
    summary = Summary.read(folder / SUMMARY)
    runs = {
        name: {
            seed: run_folder(folder, name, seed)
            for seed in sorted({*map(int, recipe.val_losses), *(f.seed for f in recipe.failed)})
        }
        for name, recipe in summary.recipes.items()
    }
    recipes = {name: _first(runs[name], RECIPE) for name in runs}
    conversions = {name: _first(runs[name], CONVERSION) for name in runs}
    finished = [runs[n][int(s)] for n, r in summary.recipes.items() for s in r.val_losses]
    return Findings(
        summary=summary,
        errors=read_errors(folder / ERRORS),
        facts=ComparisonRecord.read(folder).facts,
        curves={
            name: {seed: read_curve(run / METRICS) for seed, run in seeds.items()}
            for name, seeds in runs.items()
        },
        recipes={name: read(path) for name, path in recipes.items() if path},
        conversions={name: path.read_text("utf-8") for name, path in conversions.items() if path},
        runs={run.name: read_run(run) for run in finished if is_run(run)},
    )


def _first(runs: Mapping[int, Path], file: str) -> Path | None:
    return next((run / file for run in runs.values() if (run / file).is_file()), None)


def write_errors(path: Path, errors: Mapping[str, LayerErrors]) -> None:
    """Write the error tables of the recipes."""
    write_json(path, dataclasses.asdict(_Errors(dict(errors))))


def read_errors(path: Path) -> dict[str, LayerErrors]:
    """Read what `write_errors` wrote."""
    return read_record(path, _Errors, cure="run the comparison again").recipes
