"""Work for the runner that dies as told, and comparisons that take no time."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from fp4lab.errors import InputError, NonFiniteError
from fp4lab.studies import Comparison, compare
from fp4lab.train.config import FitConfig


@dataclass(frozen=True)
class FakeWork:
    """Logs `steps` steps, going on after the last one it finds; `die` says how a start ends."""

    steps: int = 4
    die: str = ""
    sleep: float = 0.0

    def __call__(self, folder: Path) -> None:
        metrics = folder / "metrics.jsonl"
        starts = folder / "starts.txt"
        with starts.open("a") as file:
            print(os.getpid(), file=file)
        done = len(metrics.read_text().splitlines()) if metrics.is_file() else 0
        for step in range(done, self.steps):
            with metrics.open("a") as file:
                loss = 2.0 / (step + 1)
                print(json.dumps({"kind": "train", "step": step + 1, "loss": loss}), file=file)
            time.sleep(self.sleep)
            if step + 1 >= self.steps // 2:
                self._die(len(starts.read_text().splitlines()))

    def _die(self, start: int) -> None:
        if self.die == "kill every time" or (self.die == "kill once" and start == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.die == "nan":
            raise NonFiniteError("step 2: layer 'blocks.0' gave a NaN\nin its output")
        if self.die == "full":
            raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")
        if self.die == "input":
            raise InputError("steps=0 must be positive; use 1")
        if self.die == "exit":
            print("leaving", flush=True)
            os._exit(3)


class Silent:
    """A watch that remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failures: dict[str, str] = {}
        self.polls = 0

    def poll(self) -> None:
        self.polls += 1

    def say(self, line: str) -> None:
        self.lines.append(line)

    def failed(self, name: str, reason: str) -> None:
        self.failures[name] = reason


def build_classifier() -> nn.Module:
    """A module of a size that every block format divides."""
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))


def classified_batch(index: int) -> tuple[Tensor, Tensor]:
    """Batch of an index: noisy inputs whose class is their largest entry."""
    generator = torch.Generator().manual_seed(index)
    x = torch.randn(64, 32, generator=generator)
    return x, x.argmax(dim=1)


@dataclass(frozen=True)
class KillingBatches:
    """The same batches, but the process that first asks for batch `at` is killed."""

    marker: Path
    at: int

    def __call__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == self.at:
            with contextlib.suppress(FileExistsError):
                self.marker.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return classified_batch(index)


def compare_here(folder: Path) -> Comparison:
    """A comparison of two recipes in this process."""

    def batch(index: int) -> tuple[Tensor, Tensor]:
        # A function inside another cannot be sent to a new process.
        return classified_batch(index)

    return compare(
        build_classifier,
        batch,
        ["bf16", "mxfp4"],
        config=FitConfig(steps=2, device="cpu", threads=1),
        out=folder,
        console=Console(file=io.StringIO()),
    )


def compare_and_die(folder: Path, moment: int) -> None:
    """The same, but killed before the bytes of its file number `moment` are on the disk."""
    calls, fsync = itertools.count(1), os.fsync

    def die(descriptor: int) -> None:
        if next(calls) == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = die  # type: ignore[assignment]
    compare_here(folder)
