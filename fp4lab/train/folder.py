"""The folder of a run: what it is, how far it got, what came out.

config.toml        the config; its presence makes the folder a run
recipe.toml        the precision recipe, whole, unless the run has none
conversion.txt     what each layer got from it, and why
tokenizer.json     the tokenizer, unless tokens are bytes
environment.json   hashes of the above, the data, versions, machine, git revision
metrics.jsonl      one line an event, see train/metrics.py
checkpoints/       see train/checkpoint.py
result.json        written at the end
.lock              locked while a process trains, see specs/lock.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp4lab.data.shards import TOKENIZER
from fp4lab.errors import InputError
from fp4lab.nn import ConversionReport
from fp4lab.recipes import Recipe
from fp4lab.specs.files import read_record, remove_leftovers, strangers, write_json, write_text
from fp4lab.specs.lock import LOCK
from fp4lab.train import toml
from fp4lab.train.config import FitConfig, differences

CONFIG = "config.toml"
RECIPE = "recipe.toml"
CONVERSION = "conversion.txt"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
RESULT = "result.json"
#: What a death in the first moments may leave, before there is a run.
_BEFORE_CONFIG = {LOCK, RECIPE, CONVERSION, ENVIRONMENT, TOKENIZER, CONFIG}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What result.json holds."""

    #: False if it was stopped by a signal or the time limit and can go on.
    finished: bool
    #: Updates made.
    steps: int
    #: Targets trained on, or microbatches for a task that does not count targets.
    tokens: int
    #: Held-out loss after the last update; None without held-out batches or if not finished.
    val_loss: float | None
    bits_per_byte: float | None
    #: Seconds of the median update.
    step_time_median: float | None
    #: Name of the precision recipe, None if the run had none.
    recipe: str | None
    seed: int
    config_hash: str
    #: SHA-256 of the text, None for a task that does not say.
    data_sha256: str | None


@dataclass(frozen=True, kw_only=True)
class FitResult(Outcome):
    """How a run ended."""

    folder: Path

    def save(self) -> None:
        """Write result.json."""
        values = dataclasses.asdict(self)
        del values["folder"]
        write_json(self.folder / RESULT, values)

    @classmethod
    def load(cls, folder: Path) -> FitResult | None:
        """The result of a finished run, None if there is none yet."""
        path = folder / RESULT
        if not path.exists():
            return None
        cure = "delete it, and the run ends again from its last checkpoint"
        outcome = read_record(path, Outcome, cure=cure)
        return cls(folder=folder, **dataclasses.asdict(outcome))


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What environment.json holds; the run is the same if config, recipe and data are."""

    config_hash: str
    #: Name and hash, None if the run has no recipe.
    recipe: dict[str, str] | None
    #: What the task says of its data, None if it says nothing.
    data: dict[str, Any] | None
    #: Where the run began, see train/environment.py.
    environment: dict[str, Any]
    #: Where it went on since, if that was elsewhere.
    resumed: tuple[dict[str, Any], ...] = ()
    #: Layers that the recipe did not reach, as the conversion's table names them.
    unreachable: tuple[str, ...] = ()

    @classmethod
    def make(
        cls,
        config: FitConfig,
        *,
        recipe: Recipe | None,
        data: dict[str, Any] | None,
        environment: dict[str, Any],
    ) -> RunRecord:
        """The record of a run that begins."""
        named = None if recipe is None else {"name": recipe.name, "hash": recipe.hash}
        return cls(config_hash=config.hash, recipe=named, data=data, environment=environment)

    def save(self, folder: Path) -> None:
        """Write environment.json."""
        write_json(folder / ENVIRONMENT, dataclasses.asdict(self))

    @classmethod
    def load(cls, folder: Path) -> RunRecord:
        """The record of a run; InputError if it is missing or damaged."""
        cure = "restore a copy, or give another folder"
        return read_record(folder / ENVIRONMENT, cls, cure=cure)

    @property
    def recipe_hash(self) -> str | None:
        """The hash of the recipe's numerics."""
        return None if self.recipe is None else self.recipe.get("hash")

    @property
    def data_sha256(self) -> str | None:
        """SHA-256 of the data."""
        return None if self.data is None else self.data.get("sha256")


def check(folder: Path, config: FitConfig, now: RunRecord) -> None:
    """Accept a folder that does not exist, is empty or holds the run that `now` records.

    Raises InputError, with what differs, if it holds another run or other files.
    """
    if (folder / CONFIG).exists():
        _check_run(folder, config, now)
    elif folder.is_dir() and (others := strangers(folder, _BEFORE_CONFIG)):
        raise InputError(
            f"folder={folder} holds {others[0]!r} but no run; give an empty or a new folder"
        )


def enter(
    folder: Path, config: FitConfig, now: RunRecord, *, report: Callable[[str], None]
) -> None:
    """`check` in the process that the folder is locked for, and make ready to go on there.

    Half-written files that the death of an earlier process left are deleted. A changed environment
    is only reported and noted, because the bits may still be the same.
    """
    check(folder, config, now)
    remove_leftovers(folder)
    if (folder / CONFIG).exists():
        _note_environment(folder, now.environment, report)


def create(
    folder: Path,
    config: FitConfig,
    now: RunRecord,
    *,
    recipe: Recipe | None,
    conversion: ConversionReport | None,
    files: dict[str, bytes],
) -> None:
    """Make the folder of a new run; one that is a run already is left as it is.

    `files` are what the task adds, such as a tokenizer.
    """
    if (folder / CONFIG).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    unreachable = () if conversion is None else conversion.names_joined("unreachable")
    dataclasses.replace(now, unreachable=unreachable).save(folder)
    if recipe is not None:
        write_text(folder / RECIPE, recipe.to_toml())
    if conversion is not None:
        write_text(folder / CONVERSION, f"{conversion}\n")
    for name, content in files.items():
        write_text(folder / name, content.decode())
    write_text(folder / CONFIG, toml.dumps(config))


def _check_run(folder: Path, config: FitConfig, new: RunRecord) -> None:
    found = differences(toml.load(folder / CONFIG, type(config)), config)
    old = RunRecord.load(folder)
    for what, before, now in (
        ("recipe (hash", old.recipe_hash, new.recipe_hash),
        ("data (sha256", old.data_sha256, new.data_sha256),
    ):
        if before != now:
            found.append(f"{what} {str(before)[:12]}, now {str(now)[:12]})")
    if found:
        raise InputError(
            f"folder={folder} holds another run, which differs in {', '.join(found)}; give another "
            f"folder, or go on with that run by --config {folder / CONFIG} --out {folder}"
        )


def _note_environment(folder: Path, here: dict[str, Any], report: Callable[[str], None]) -> None:
    old = RunRecord.load(folder)
    last = (old.environment, *old.resumed)[-1]
    if last != here:
        report(f"resumed elsewhere, so the last bits may differ: {changes(last, here)}")
        dataclasses.replace(old, resumed=(*old.resumed, here)).save(folder)


def changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What differs between two environments: "torch 2.12.0 -> 2.13.0, threads 1 -> 2"."""
    return ", ".join(
        f"{key} {before.get(key)} -> {after.get(key)}"
        for key in before | after
        if before.get(key) != after.get(key)
    )
