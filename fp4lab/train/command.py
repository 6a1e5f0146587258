"""`fp4lab train` and `fp4lab eval`: their options, and what they do."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from fp4lab.specs.options import Unset
from fp4lab.train import toml
from fp4lab.train.config import RunConfig
from fp4lab.train.evaluation import evaluate as evaluate_checkpoint
from fp4lab.train.listeners import progress
from fp4lab.train.run import default_folder
from fp4lab.train.run import train as train_run

TRAINED, STOPPED = 0, 4


@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """Train a language model under a precision recipe.

    If the run's folder holds the same run, it goes on from its newest checkpoint.
    torchrun --nproc-per-node N -m fp4lab train --microbatches N ... uses N processes; the number of
    microbatches must be a multiple of N.
    """

    config: Unset[Path] = None
    """TOML file with the config that the options change."""
    out: Unset[Path] = None
    """The run's folder; by default one in runs/, by config."""
    # without a name, the options of the config stand beside the two above
    run: Annotated[RunConfig, arg(name="")] = field(default_factory=RunConfig)

    @classmethod
    def before(cls, words: Sequence[str]) -> TrainArguments:
        """The values that the options in `words` change: those of the file, if there is one."""
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        first.add_argument("--config", type=Path, nargs="?")
        file = first.parse_known_args(list(words))[0].config
        return cls() if file is None else cls(run=toml.load(file, RunConfig))


@dataclass(frozen=True, kw_only=True)
class EvalArguments:
    """Report the loss on the held-out text, with the run's own config and recipe."""

    checkpoint: Positional[Path]
    """A checkpoint's folder, or a run's folder for its newest checkpoint."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to evaluate."""


def train(given: TrainArguments) -> int:
    """Train and print what came out; the exit status."""
    config = given.run
    folder = given.out or default_folder(config)
    is_first = os.environ.get("RANK", "0") == "0"
    show = progress(config.steps) if is_first else contextlib.nullcontext()
    with show as on_event:
        result = train_run(config, folder=folder, on_event=on_event)
    if not result.finished:
        return STOPPED
    if is_first:
        loss = "" if result.val_loss is None else f", held-out loss {result.val_loss:.4f} nats"
        print(f"{folder}: {result.steps} steps{loss}{_bits(result.bits_per_byte)}")
    return TRAINED


def evaluate(given: EvalArguments) -> int:
    """Evaluate and print what came out; the exit status."""
    found = evaluate_checkpoint(given.checkpoint, device=given.device)
    bits = _bits(found.bits_per_byte)
    print(f"{found.checkpoint}: held-out loss {found.loss:.4f} nats{bits}")
    return TRAINED


def _bits(bits_per_byte: float | None) -> str:
    return "" if bits_per_byte is None else f", {bits_per_byte:.4f} bits/byte"
