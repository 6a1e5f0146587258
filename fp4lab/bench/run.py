"""Measure rows, one after another.

A row that fails is a line that says so. An interrupt ends the measuring and loses nothing that was
measured before.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fp4lab.bench import limits, machine, operators, products
from fp4lab.bench.measure import (
    Rounds,
    Stopwatch,
    measure,
    stopwatch_for,
    stopwatch_of,
    threads_set,
)
from fp4lab.bench.results import Findings, Line
from fp4lab.bench.rows import STATED_SIZE, Claim, LeftOutError, Row, Setting, one_line


def all_rows(*, gpu: bool = False) -> list[Row]:
    """Every row of a device, in the order of the tables."""
    own = [] if gpu else limits.rows()
    return [*operators.rows(gpu=gpu), *products.rows(gpu=gpu), *own]


def measure_rows(
    rows: Sequence[Row],
    setting: Setting,
    *,
    missing: Mapping[str, str] | None = None,
    on_row: Callable[[int, str], object] = lambda index, name: None,
) -> Findings:
    """Measure the rows; `on_row` hears of each before it begins.

    `missing` are packages that cannot be compared, with the reasons.
    """
    facts = machine.describe(setting)
    lines: list[Line] = []
    stopped = ""
    try:
        with threads_set(setting.threads):
            for index, row in enumerate(rows):
                stopped = row.name
                on_row(index, row.name)
                lines += measure_row(row, setting)
                # the matrices of a row are gone before those of the next are made
                gc.collect()
        stopped = ""
    except KeyboardInterrupt:
        pass
    return Findings(
        machine=facts,
        settings=_settings(setting),
        lines=tuple(lines),
        missing=missing or {},
        stopped=stopped,
    )


def measure_row(row: Row, setting: Setting, *, stopwatch: Stopwatch | None = None) -> list[Line]:
    """The lines of a row; one that says why where it cannot be measured or fails."""
    try:
        return _measured(row, setting, stopwatch)
    except LeftOutError as error:
        reason = str(error)
    except Exception as error:  # a row that fails must not lose the others
        reason = one_line(error)
    return [Line(group=row.group, name=row.name, target=row.target, left_out=reason)]


def _measured(row: Row, setting: Setting, stopwatch: Stopwatch | None) -> list[Line]:
    judged = (setting.size == STATED_SIZE or not row.sized) and setting.threads == 1
    job = row.prepare(setting)
    lines = [dataclasses.replace(line, judged=judged) for line in job.lines]
    if not job.runs:
        return lines
    if stopwatch is None:
        wall = stopwatch_of(time.perf_counter)
        stopwatch = wall if job.wall else stopwatch_for(setting.device, setting.threads)
    rounds = measure(job.runs, stopwatch, rounds=setting.rounds)
    return lines + [_line(claim, row, rounds, judged=judged) for claim in job.claims]


def _line(claim: Claim, row: Row, rounds: Rounds, *, judged: bool) -> Line:
    seconds = rounds.time(claim.of)
    value, unit = None, "x"
    if claim.to is not None:
        pair = (claim.to, claim.of) if claim.faster else (claim.of, claim.to)
        value = rounds.ratio(*pair, factor=claim.factor)
    elif claim.target is not None:
        value, unit = seconds.times(1e6), "us"
    return Line(
        group=row.group,
        name=claim.name,
        seconds=seconds,
        value=value,
        unit=unit,
        against=claim.against,
        target=claim.target,
        judged=judged,
        moved=claim.moved,
        flops=claim.flops,
        roof=_roof(claim, rounds),
        note=claim.note,
    )


def _roof(claim: Claim, rounds: Rounds) -> float | None:
    """The rate of the run that does no more than move, or multiply, in the same unit."""
    if claim.roof is None:
        return None
    name, moved = claim.roof
    return (moved or claim.flops) / rounds.time(name).median


def _settings(setting: Setting) -> dict[str, Any]:
    on_gpu, one = setting.device.type == "cuda", setting.threads == 1
    return {
        "size": setting.size,
        "rounds": setting.rounds,
        "device": setting.device.type,
        "clock": "CUDA events" if on_gpu else "CPU time" if one else "wall clock",
    }
