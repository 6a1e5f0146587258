"""The folder of a run: what it is, how far it got, what came out.

config.toml        the config; its presence makes the folder a run
recipe.toml        the precision recipe, whole, unless the run has none
conversion.txt     what each layer got from it, and why
environment.json   hashes of the above, the data, versions, machine, git revision
metrics.jsonl      one line an event, see train/metrics.py
checkpoints/       see train/checkpoint.py
result.json        written at the end
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp4lab.errors import InputError
from fp4lab.train import toml
from fp4lab.train.config import FitConfig, differences
from fp4lab.train.files import intended, read_json, remove_leftovers, write_json, write_text

if TYPE_CHECKING:
    from fp4lab.nn import ConversionReport
    from fp4lab.recipes import Recipe

CONFIG = "config.toml"
RECIPE = "recipe.toml"
CONVERSION = "conversion.txt"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
RESULT = "result.json"
TENSORBOARD = "tensorboard"
#: What a death in the first moments may leave, before there is a run.
_BEFORE_CONFIG = {RECIPE, CONVERSION, ENVIRONMENT, TENSORBOARD, CONFIG}


@dataclass(frozen=True)
class FitResult:
    """How a run ended."""

    folder: Path
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

    def save(self) -> None:
        """Write result.json."""
        values = dataclasses.asdict(self)
        del values["folder"]
        write_json(self.folder / RESULT, values)

    @classmethod
    def load(cls, folder: Path) -> FitResult | None:
        """The result of a finished run, None if there is none yet."""
        path = folder / RESULT
        return cls(folder=folder, **read_json(path)) if path.exists() else None


def record(
    config: FitConfig,
    *,
    recipe: Recipe | None,
    data: dict[str, Any] | None,
    environment: dict[str, Any],
) -> dict[str, Any]:
    """What environment.json holds; the run is the same if config, recipe and data are."""
    return {
        "config_hash": config.hash,
        "recipe": None if recipe is None else {"name": recipe.name, "hash": recipe.hash},
        "data": data,
        "environment": environment,
    }


def check(
    folder: Path, config: FitConfig, now: dict[str, Any], *, report: Callable[[str], None]
) -> None:
    """Accept a folder that does not exist, is empty or holds the run that `now` records.

    Half-written files that the death of an earlier process left there are deleted.

    Raises InputError, with what differs, if it holds another run or other files. A changed
    environment is only reported and noted, because the bits may still be the same.
    """
    if (folder / CONFIG).exists():
        _check_run(folder, config, now, report)
    elif folder.is_dir():
        others = sorted({intended(path.name) for path in folder.iterdir()} - _BEFORE_CONFIG)
        if others:
            raise InputError(
                f"folder={folder} holds {others[0]!r} but no run; give an empty or a new folder"
            )
    remove_leftovers(folder)


def create(
    folder: Path,
    config: FitConfig,
    now: dict[str, Any],
    *,
    recipe: Recipe | None,
    conversion: ConversionReport | None,
) -> None:
    """Make the folder of a new run; one that is a run already is left as it is."""
    if (folder / CONFIG).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / ENVIRONMENT, now)
    if recipe is not None:
        write_text(folder / RECIPE, recipe.to_toml())
    if conversion is not None:
        write_text(folder / CONVERSION, f"{conversion}\n")
    write_text(folder / CONFIG, toml.dumps(config))


def _check_run(
    folder: Path, config: FitConfig, new: dict[str, Any], report: Callable[[str], None]
) -> None:
    found = differences(toml.load(folder / CONFIG, type(config)), config)
    old = read_json(folder / ENVIRONMENT)
    for key, part in (("recipe", "hash"), ("data", "sha256")):
        before, now = ((one.get(key) or {}).get(part) for one in (old, new))
        if before != now:
            found.append(f"{key} ({part} {str(before)[:12]}, now {str(now)[:12]})")
    if found:
        raise InputError(
            f"folder={folder} holds another run, which differs in {', '.join(found)}; "
            f"give another folder, or the {CONFIG} of this one"
        )
    last = (old.get("resumed") or [old["environment"]])[-1]
    now = new["environment"]
    if last != now:
        changed = [
            f"{key} {last.get(key)} -> {now[key]}" for key in now if last.get(key) != now[key]
        ]
        report(f"resumed elsewhere, so the last bits may differ: {', '.join(changed)}")
        write_json(folder / ENVIRONMENT, {**old, "resumed": [*old.get("resumed", []), now]})
