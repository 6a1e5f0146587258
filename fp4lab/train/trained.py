"""What a run's folder says of its checkpoints: config, recipe and tokenizer."""

from __future__ import annotations

from pathlib import Path

from fp4lab import recipes
from fp4lab.data.shards import TOKENIZER, read_tokenizer
from fp4lab.data.tokenizer import Tokenizer
from fp4lab.errors import InputError
from fp4lab.recipes import Recipe
from fp4lab.train import checkpoint as checkpoints
from fp4lab.train import toml
from fp4lab.train.config import FitConfig, RunConfig
from fp4lab.train.folder import CHECKPOINTS, CONFIG, RECIPE, RunRecord


def choose(path: Path) -> Path:
    """A checkpoint's folder: that one, or the newest in a run's folder, unverified."""
    if (path / "manifest.json").exists() or path.name.startswith("step-"):
        return path
    if not path.is_dir():
        what = "is no folder" if path.exists() else "does not exist"
        raise InputError(f"checkpoint={path} {what}; give a run's folder or a checkpoint")
    found = checkpoints.available(path / CHECKPOINTS)
    if not found:
        raise InputError(f"checkpoint={path} holds no checkpoint; give the folder of a run")
    return found[-1]


def run_of(checkpoint: Path) -> Path:
    """The folder of the run that a checkpoint is in."""
    return checkpoint.absolute().parent.parent


def fit_config(run: Path) -> FitConfig:
    """The config of a run; a RunConfig if it trained a language model by one."""
    path = run / CONFIG
    if not path.exists():
        raise InputError(f"{path} is missing; a checkpoint is used in its run's folder")
    table = toml.read(path)
    return toml.from_table(table, RunConfig if "model" in table else FitConfig)


def language_config(run: Path) -> RunConfig:
    """The config of a run that trained a language model by one; InputError for another."""
    config = fit_config(run)
    if not isinstance(config, RunConfig):
        raise InputError(
            f"{run} holds a module of your own, not a language model of `fp4lab train` or "
            "`fp4lab compare`; give the folder of such a run"
        )
    return config


def own_recipe(run: Path) -> Recipe | None:
    """The recipe of a run, None if it had none."""
    path = run / RECIPE
    return recipes.read(path) if path.exists() else None


def own_tokenizer(run: Path) -> Tokenizer:
    """The tokenizer of a run; InputError if its file is missing or another."""
    data = RunRecord.load(run).data or {}
    return read_tokenizer(
        run / TOKENIZER, sha256=data.get("tokenizer_sha256"), boundary=data.get("boundary")
    )
