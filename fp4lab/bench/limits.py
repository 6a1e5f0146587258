"""The rows of threads, memory and calls: how it scales, what it allocates, what a call costs."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from functools import partial
from pathlib import Path

import fp4lab
from fp4lab import formats
from fp4lab.bench.measure import Run, threads_set
from fp4lab.bench.operators import (
    Make,
    bytes_of,
    copying,
    fake_quantizing,
    in_place,
    quantizing,
)
from fp4lab.bench.results import Target
from fp4lab.bench.rows import Claim, Job, LeftOutError, Row, Setting
from fp4lab.formats import Rounding
from fp4lab.machine import load_average

GROUP = "limits"
TWICE = Target(1.7, "at least")
MIB = 1 << 20
SMALL = (16, 64)


def rows() -> list[Row]:
    """Two threads, peak memory, and a call on a small tensor; of the CPU only."""
    makes = {
        "fake-quantize nvfp4": fake_quantizing(formats.NVFP4),
        "fake-quantize nvfp4 stochastic8": fake_quantizing(formats.NVFP4, Rounding.STOCHASTIC_8),
        "quantize nvfp4": quantizing(formats.NVFP4),
    }
    copy = partial(_two_threads_job, make=lambda x: (copying(x), x.nbytes))
    memory, call = "memory of fake-quantize nvfp4", "call of fake-quantize nvfp4"
    return [
        Row(group=GROUP, name="two threads copy", job=copy),
        *(
            Row(
                group=GROUP,
                name=f"two threads {name}",
                job=partial(_two_threads_job, make=make),
                target=TWICE,
            )
            for name, make in makes.items()
        ),
        Row(group=GROUP, name=memory, job=_memory_job, target=Target(1)),
        Row(group=GROUP, name=call, job=_call_job, target=Target(25), sized=False),
    ]


def _two_threads_job(setting: Setting, row: Row, *, make: Make) -> Job:
    """The same call with one thread and with two, by wall clock, into memory that is there."""
    if (os.cpu_count() or 1) < 2:
        raise LeftOutError("there is one core here")
    run = in_place(make(setting.matrix(setting.size, setting.size))[0])
    load = load_average()

    def with_threads(count: int) -> Run:
        def call() -> None:
            with threads_set(count):
                run()

        return call

    claim = Claim(
        name=row.name,
        of="two",
        to="one",
        against="one thread's speed",
        target=row.target,
        faster=True,
        # the wall clock counts what other processes take, too
        note=f"load average {load[0]}" if load else "",
    )
    return Job(runs={"one": with_threads(1), "two": with_threads(2)}, claims=[claim], wall=True)


def _memory_job(setting: Setting, row: Row) -> Job:
    x = setting.matrix(setting.size, setting.size)
    extra = peak_beyond_result(lambda: fp4lab.fake_quantize(x, formats.NVFP4))
    return Job(lines=[row.line(extra / MIB, unit="MiB", against="beyond the output")])


def peak_beyond_result(run: Run) -> int:
    """Bytes of resident memory that a call needs at its peak, but for those of its result.

    Freed memory that the allocator keeps is given back first, for it would be used again unseen.

    Raises:
        LeftOutError: the system does not tell.
    """
    run()  # what is loaded at the first call does not count
    gc.collect()
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (OSError, AttributeError) as error:
        raise LeftOutError(f"the system does not tell a process its peak memory: {error}") from None
    status = Path("/proc/self/status")
    before = _kibibytes(status, "VmRSS")
    result = run()
    return max((_kibibytes(status, "VmHWM") - before) * 1024 - bytes_of(result), 0)


def _kibibytes(status: Path, name: str) -> int:
    lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1])


def _call_job(setting: Setting, row: Row) -> Job:
    x = setting.matrix(*SMALL)
    name = f"{row.name} {SMALL[0]}x{SMALL[1]}"
    runs: dict[str, Run] = {"ours": lambda: fp4lab.fake_quantize(x, formats.NVFP4)}
    return Job(runs=runs, claims=[Claim(name=name, of="ours", target=row.target)])
