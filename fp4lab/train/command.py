"""`fp4lab train`, `eval` and `generate`: their options, and what they do."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from fp4lab.progress import shown
from fp4lab.specs.options import Unset
from fp4lab.train import toml
from fp4lab.train.config import RunConfig
from fp4lab.train.evaluation import evaluate as evaluate_checkpoint
from fp4lab.train.generation import generate as generate_text
from fp4lab.train.listeners import progress
from fp4lab.train.run import default_folder
from fp4lab.train.run import train as train_run
from fp4lab.train.wandb_log import DEFAULT_PROJECT

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


def with_project(words: Sequence[str]) -> list[str]:
    """The words of a command line, with a W&B project where `--wandb` has none.

    >>> with_project(["--wandb", "--steps", "3"])
    ['--wandb', 'fp4lab', '--steps', '3']
    """
    found = list(words)
    if "--wandb" in found:
        after = found.index("--wandb") + 1
        if after == len(found) or found[after].startswith("-"):
            found.insert(after, DEFAULT_PROJECT)
    return found


@dataclass(frozen=True, kw_only=True)
class EvalArguments:
    """Report the loss on the held-out text or on other text, with the run's own recipe."""

    checkpoint: Positional[Path]
    """A checkpoint's folder, or a run's folder for its newest checkpoint."""
    data: Unset[str] = None
    """Other text: a folder, a file, or shards of the same tokenizer, of which the held-out part
    counts. By default the run's own held-out text."""
    windows: Unset[int] = None
    """Windows of the other text, spread evenly; by default all of it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to evaluate."""


@dataclass(frozen=True, kw_only=True)
class GenerateArguments:
    """Continue a text with a trained language model, token by token.

    The model sees as many tokens as a window of its training has; an older beginning falls away.
    There is no key-value cache, so every token takes a whole forward pass.
    """

    checkpoint: Positional[Path]
    """A checkpoint's folder, or a run's folder for its newest checkpoint."""
    prompt: str = ""
    """What to continue; - reads it from standard input. It may be left out where the tokenizer has
    a token between documents."""
    tokens: int = 200
    """Tokens to draw; fewer if a document ends."""
    temperature: float = 0.8
    """What logits are divided by; 0 takes the likeliest token."""
    top_k: Unset[int] = None
    """Draw from the k likeliest tokens only; by default from all."""
    seed: int = 0
    """Seed of the draws: the same one gives the same text."""
    recipe: Unset[str] = None
    """Recipe to run the model under, a name or a TOML file; by default its own."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""


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
    with shown("evaluating", None, unit="tokens") as advance:
        found = evaluate_checkpoint(
            given.checkpoint,
            data=given.data,
            windows=given.windows,
            device=given.device,
            on_tokens=advance,
        )
    bits = _bits(found.bits_per_byte)
    where = "held-out loss" if given.data is None else f"on {given.data}: loss"
    count = "" if found.tokens is None else f", over {found.tokens:,} tokens"
    print(f"{found.checkpoint}: {where} {found.loss:.4f} nats{bits}{count}")
    return TRAINED


def generate(given: GenerateArguments) -> int:
    """Print the prompt and what follows it, as it comes; the exit status."""
    prompt = os.fsencode(given.prompt)
    if given.prompt == "-":
        # Python has None where a process began with the descriptor closed.
        prompt = b"" if sys.stdin is None else sys.stdin.buffer.read()
    pieces = generate_text(
        given.checkpoint,
        prompt,
        tokens=given.tokens,
        temperature=given.temperature,
        top_k=given.top_k,
        seed=given.seed,
        recipe=given.recipe,
        device=given.device,
    )
    for piece in chain([prompt.decode("utf-8", "replace")], pieces, ["\n"]):
        print(piece, end="", flush=True)
    return TRAINED


def _bits(bits_per_byte: float | None) -> str:
    return "" if bits_per_byte is None else f", {bits_per_byte:.4f} bits/byte"
