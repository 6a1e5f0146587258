"""`fp4lab bench`: its options, and what it does."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from tyro.conf import FlagCreatePairsOff

from fp4lab.bench import peer_rows, roofline, table
from fp4lab.bench.measure import LEAST_ROUNDS
from fp4lab.bench.rows import STATED_SIZE, Setting, pick
from fp4lab.bench.run import all_rows, measure_rows
from fp4lab.errors import InputError, describe
from fp4lab.specs.figures import STDOUT
from fp4lab.specs.options import JsonFile, Unset

FILE = "bench.json"
#: the shapes that follow from the size consist of whole blocks for its multiples
SIZE_STEP = 128
#: exit status, as `fp4lab --help` lists it
INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class BenchArguments:
    """Measure how fast the operators are here, against a copy, a matmul and other packages.

    Times are CPU time for one thread, wall clock for several, and CUDA events on a GPU. What is
    compared is called in turn in the same run. Targets are stated for 4096x4096 and one thread.
    """

    ops: Unset[str] = None
    """Which rows, by parts of their names or patterns, with commas between them; by default all."""
    peers: FlagCreatePairsOff[bool] = False
    """Whether to measure other packages too; those that are installed, eager and compiled."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to measure."""
    threads: int = 1
    """Threads on the CPU."""
    size: int = STATED_SIZE
    """Side of the matrices, a multiple of 128; the shapes of products follow from it."""
    repeats: int = LEAST_ROUNDS
    """Rounds of which the median is taken; 5 or more."""
    json: JsonFile = None
    """File for everything that was measured; - prints it instead of the tables."""
    out: Unset[Path] = None
    """Folder for the roofline figure, and for the JSON file if no other place is given."""


def bench(given: BenchArguments) -> int:
    """Measure, print the tables and write the files, also where the user ends it by Ctrl-C.

    Returns 130 in that case, else 0, for no time is an error.
    """
    setting = checked(given)
    path = given.json or (given.out and given.out / FILE)
    if given.json and given.json != STDOUT:
        _check_writable("json", given.json)
    if given.out:
        _check_writable("out", given.out / roofline.NAME)
        _check_writable("out", given.out / FILE)
    gpu = setting.device.type == "cuda"
    others, missing = peer_rows.rows() if given.peers else ([], {})
    rows = pick([*all_rows(gpu=gpu), *others], given.ops)
    findings = measure_rows(
        rows,
        setting,
        missing=missing,
        on_row=lambda at, name: _say(at + 1, len(rows), name),
    )
    told = sys.stderr if path == STDOUT else sys.stdout
    if path != STDOUT:
        table.show(findings)
    if path:
        findings.save(path)
        print(f"measurements: {path}", file=told)
    if given.out and (figure := roofline.save(findings, given.out)):
        print(f"roofline: {figure}", file=told)
    return INTERRUPTED if findings.stopped else 0


def checked(given: BenchArguments) -> Setting:
    """The setting that the options describe.

    Raises:
        InputError: a number out of its range, or a device that is not there.
    """
    cores = os.cpu_count() or 1
    if not 1 <= given.threads <= cores:
        raise InputError(f"threads={given.threads} should be 1 to {cores}, the cores here")
    if given.size < SIZE_STEP or given.size % SIZE_STEP:
        raise InputError(
            f"size={given.size} is not a multiple of {SIZE_STEP}, the largest block; give "
            f"{max(given.size // SIZE_STEP, 1) * SIZE_STEP} or {STATED_SIZE}"
        )
    if given.repeats < LEAST_ROUNDS:
        raise InputError(f"repeats={given.repeats} is below {LEAST_ROUNDS}; give that or more")
    if given.device == "cuda" and not torch.cuda.is_available():
        build = "is built without CUDA" if torch.version.cuda is None else "finds no GPU"
        raise InputError(
            f"device='cuda': torch {torch.__version__} {build}; use --device cpu, or a machine "
            "with a GPU and a CUDA build of torch"
        )
    return Setting(
        size=given.size,
        device=torch.device(given.device),
        threads=given.threads,
        rounds=given.repeats,
    )


def _check_writable(argument: str, path: Path) -> None:
    """InputError unless the file can be written, before an hour is spent; its content stays."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        path.open("a").close()
        if new:
            path.unlink()
    except OSError as error:
        raise InputError(
            f"{argument}: {str(path)!r} cannot be written ({describe(error)}); give a path in a "
            "folder where files can be made"
        ) from None


def _say(number: int, count: int, name: str) -> None:
    """How far it is, on stderr: a line that is written over on a terminal, else a line each."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"{number}/{count} {name:<40}", end=end, file=sys.stderr, flush=True)
