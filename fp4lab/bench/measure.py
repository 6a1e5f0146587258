"""Times that can be believed on a busy machine.

What is compared is called in turn, A B A B ..., so that every round sees the same machine, and a
ratio is the median of the ratios of the rounds. A turn begins with a call that does not count, so
that what counts finds its own caches and memory, not what the turn of another left. A call too
short for the clock is repeated within its turn. With one thread a time is CPU time of the process
(what other processes take does not count), with more it is wall clock, on a GPU it is that between
two CUDA events. The spread is the quartiles over the rounds. Nothing here judges a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

Run: TypeAlias = Callable[[], object]
#: seconds that so many calls take together
Stopwatch: TypeAlias = Callable[[Run, int], float]

LEAST_ROUNDS = 5
#: a round calls something at least this long
LEAST_S = 0.02
MOST_CALLS = 1 << 20


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    def times(self, factor: float) -> Spread:
        """In another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """That of these values."""
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        return cls(float(middle), float(low), float(high))


@dataclass(frozen=True)
class Rounds:
    """Seconds of a call of each run, round by round."""

    seconds: Mapping[str, tuple[float, ...]]

    def time(self, name: str) -> Spread:
        """How long a call takes."""
        return Spread.of(self.seconds[name])

    def ratio(self, name: str, to: str, *, factor: float = 1.0) -> Spread:
        """`factor` times the seconds of `name` over those of `to` in the same round."""
        pairs = zip(self.seconds[name], self.seconds[to], strict=True)
        return Spread.of([factor * a / b for a, b in pairs])


def measure(
    runs: Mapping[str, Run],
    stopwatch: Stopwatch,
    *,
    rounds: int = LEAST_ROUNDS,
    least_s: float = LEAST_S,
) -> Rounds:
    """Time the runs against each other, each turn after a call that does not count."""
    calls = {name: _calls(run, stopwatch, least_s) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            run()
            seconds[name].append(stopwatch(run, calls[name]) / calls[name])
    return Rounds({name: tuple(times) for name, times in seconds.items()})


def _calls(run: Run, stopwatch: Stopwatch, least_s: float) -> int:
    """How many calls last long enough for the clock, the first not counted."""
    run()
    calls = 1
    while calls < MOST_CALLS and (seconds := stopwatch(run, calls)) < least_s:
        wanted = math.ceil(calls * least_s / seconds) if seconds > 0 else 16 * calls
        calls = min(max(2 * calls, wanted), MOST_CALLS)
    return calls


def stopwatch_of(clock: Callable[[], float]) -> Stopwatch:
    """A stopwatch that reads a clock before and after."""

    def elapsed(run: Run, calls: int) -> float:
        before = clock()
        for _ in range(calls):
            run()
        return clock() - before

    return elapsed


def cuda_elapsed(run: Run, calls: int) -> float:
    """The time on the GPU between an event before the calls and one after."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def stopwatch_for(device: torch.device, threads: int) -> Stopwatch:
    """CUDA events on a GPU, CPU time for one thread, wall clock for several."""
    if device.type == "cuda":
        return cuda_elapsed
    return stopwatch_of(time.process_time if threads == 1 else time.perf_counter)


@contextmanager
def threads_set(count: int) -> Iterator[None]:
    """So many threads inside the block, as many as before after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
