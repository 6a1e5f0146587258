"""What differs between runs: config, recipe, data, environment, as their folders record it.

The runs of a comparison should differ in recipe and seed alone. Whatever else differs may have its
part in a gap, so the report and the terminal say it first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fp4lab import recipes
from fp4lab.errors import InputError
from fp4lab.recipes.tables import text_table
from fp4lab.report.curves import read_curve
from fp4lab.train import toml
from fp4lab.train.config import FitConfig
from fp4lab.train.folder import CONFIG, METRICS, RECIPE, FitResult, RunRecord, changes

ABSENT = "–"
#: what recipes and seeds that are compared differ in by design
INTENDED = {("config", "seed"), ("recipe", "name"), ("recipe", "hash")}
#: runs that a sentence names before it counts them
NAMED = 3

#: characters of a hash that are shown, as in a recipe's table
HASH = 12

#: part and name, as ("environment", "torch")
Fact = tuple[str, str]


@dataclass(frozen=True)
class RunFacts:
    """What a run's folder says of how it was made."""

    #: Every value as text, but for the settings that cannot change a weight.
    facts: dict[Fact, str]
    #: Each time that it went on in another environment: what changed.
    resumed: tuple[str, ...]
    #: Layers that the recipe did not reach.
    unreachable: tuple[str, ...]


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return (folder / CONFIG).is_file()


def read_run(folder: Path) -> RunFacts:
    """Read the records of a run; InputError where the folder holds none, or a damaged one."""
    if not is_run(folder):
        inner = sorted(path.parent for path in folder.glob(f"*/*/{CONFIG}"))
        raise InputError(
            f"run={folder} holds a comparison; name one of its runs, such as {inner[0]}"
            if inner
            else f"run={folder} holds no run; give a folder that fp4lab train or compare wrote"
        )
    record = RunRecord.load(folder)
    recipe = record.recipe
    operational = {f.name for f in dataclasses.fields(FitConfig) if f.metadata.get("operational")}
    config = _flat(toml.read(folder / CONFIG))
    parts = {
        # a recipe is told by its own name and hash
        "config": {k: v for k, v in config.items() if k not in {"recipe", *operational}},
        "recipe": {"name": recipe["name"], "hash": recipe["hash"][:HASH]} if recipe else {},
        "data": _flat(record.data or {}),
        "environment": _flat(record.environment),
    }
    environments = (record.environment, *record.resumed)
    return RunFacts(
        {(part, key): text for part, values in parts.items() for key, text in values.items()},
        tuple(changes(old, new) for old, new in pairwise(environments)),
        record.unreachable,
    )


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables under dotted names, every value as text."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = ABSENT if value is None else str(value)
    return flat


def differing(runs: Mapping[str, RunFacts]) -> dict[Fact, dict[str, list[str]]]:
    """The facts in which the runs differ: each value, the commonest first, and the runs with it."""
    found: dict[Fact, dict[str, list[str]]] = {}
    for fact in dict.fromkeys(fact for run in runs.values() for fact in run.facts):
        values: dict[str, list[str]] = {}
        for name, run in runs.items():
            values.setdefault(run.facts.get(fact, ABSENT), []).append(name)
        if len(values) > 1:
            found[fact] = dict(sorted(values.items(), key=lambda item: -len(item[1])))
    return found


def shared(runs: Mapping[str, RunFacts]) -> dict[Fact, str]:
    """The facts in which the runs do not differ."""
    apart = differing(runs)
    every = {fact: text for run in runs.values() for fact, text in run.facts.items()}
    return {fact: text for fact, text in every.items() if fact not in apart}


def warnings(runs: Mapping[str, RunFacts]) -> list[str]:
    """What differs between the runs of a comparison and should not, a sentence each."""
    return [
        f"{key} ({part}): {_spread(values)}."
        for (part, key), values in differing(runs).items()
        if (part, key) not in INTENDED
    ] + [
        f"{name} was resumed in another environment: {'; then '.join(run.resumed)}."
        for name, run in runs.items()
        if run.resumed
    ]


def _spread(values: Mapping[str, list[str]]) -> str:
    """The commonest value last: "2.12.0 in nvfp4-seed0, 2.13.0 in the other 5 runs"."""
    (common, most), *rest = values.items()
    told = [f"{value} in {_some(names)}" for value, names in rest]
    return ", ".join([*told, f"{common} in {_some(most, others=True)}"])


def _some(names: list[str], *, others: bool = False) -> str:
    if others and len(names) > 1:
        return f"the other {len(names)} runs"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


@dataclass(frozen=True)
class Difference:
    """One thing in which two runs differ: part ("config", ...), name, and both values as text."""

    part: str
    name: str
    first: str
    second: str


@dataclass(frozen=True)
class Differences:
    """What differs between two runs; it prints as a table, and is empty for a run and its repeat.

    `recipe` is `Recipe.diff`, empty where the numerics are equal; `losses` says from which step on
    the training losses differ.
    """

    first: Path
    second: Path
    rows: tuple[Difference, ...]
    recipe: str
    losses: str

    def __str__(self) -> str:
        folders = (self.first, self.second)
        short = self.first.name != self.second.name
        header = ("part", "what", *(folder.name if short else str(folder) for folder in folders))
        rows = [(row.part, row.name, row.first, row.second) for row in self.rows]
        same = "The same config, recipe, data, environment and result."
        table = text_table(header, rows) if rows else same
        recipe = f"\nrecipe {self.recipe}" if self.recipe else ""
        return f"{table}{recipe}\n{self.losses}"


def differences(first: str | Path, second: str | Path) -> Differences:
    """What differs between two runs, from the records in their folders.

    Settings that cannot change a weight (how often is saved, what is shown) are left out, and so is
    when and how fast they ran.

    Raises:
        InputError: a folder holds no run, or a file in it is damaged.

    >>> from fp4lab import report
    >>> print(report.differences("runs/a", "runs/b"))  # doctest: +SKIP
    part         what   runs/a  runs/b
    -----------  -----  ------  ------
    environment  torch  2.12.0  2.13.0
    The training losses differ from step 37 on: 2.4071314334869385, 2.4071316719055176.
    """
    folders = Path(first), Path(second)
    runs = {"first": read_run(folders[0]), "second": read_run(folders[1])}
    rows = [
        Difference(part, key, *(run.facts.get((part, key), ABSENT) for run in runs.values()))
        for part, key in differing(runs)
    ]
    resumed = ["; ".join(run.resumed) or ABSENT for run in runs.values()]
    if resumed[0] != resumed[1]:
        rows.append(Difference("environment", "changed on resuming", *resumed))
    results = [FitResult.load(folder) for folder in folders]
    ends = [ABSENT if result is None else str(result.val_loss) for result in results]
    if ends[0] != ends[1]:
        rows.append(Difference("result", "val_loss", *ends))
    return Differences(*folders, tuple(rows), _recipe_diff(*folders), _first_loss(*folders))


def _recipe_diff(first: Path, second: Path) -> str:
    files = first / RECIPE, second / RECIPE
    if not all(file.is_file() for file in files):
        return ""
    old, new = (recipes.read(file) for file in files)
    return "" if old.hash == new.hash else old.diff(new)


def _first_loss(first: Path, second: Path) -> str:
    """From which step on the training losses differ, of the steps that both have logged."""
    ours, theirs = (read_curve(folder / METRICS).train for folder in (first, second))
    steps = np.intersect1d(ours.steps, theirs.steps)
    pairs = [s.losses[np.searchsorted(s.steps, steps)] for s in (ours, theirs)]
    if not len(steps):
        return "No step has a training loss in both."
    apart = np.flatnonzero(pairs[0] != pairs[1])
    if not len(apart):
        return f"The training losses of all {len(steps)} common steps are the same to the last bit."
    step, (a, b) = steps[apart[0]], (float(losses[apart[0]]) for losses in pairs)
    return f"The training losses differ from step {step:.0f} on: {a}, {b}."
