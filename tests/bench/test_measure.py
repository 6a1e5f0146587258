"""The measuring core under clocks that are told what to say."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from fp4lab.bench import measure as core
from fp4lab.bench.measure import Rounds, Spread, measure, stopwatch_of, threads_set


class Work:
    """Calls that take a told time by a clock of their own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def clock(self) -> float:
        return self.now

    def run(self, name: str, *seconds: float) -> core.Run:
        times = itertools.cycle(seconds)

        def call() -> None:
            self.calls.append(name)
            self.now += next(times)

        return call


def test_the_runs_alternate_and_the_first_call_of_a_turn_does_not_count() -> None:
    work = Work()
    runs = {"a": work.run("a", 100.0, 3.0), "b": work.run("b", 50.0, 1.0)}
    found = measure(runs, stopwatch_of(work.clock), rounds=6)
    assert found.seconds == {"a": (3.0,) * 6, "b": (1.0,) * 6}
    # one call is long enough for the clock, then in turn
    assert work.calls == ["a", "a", "b", "b"] * 7


def test_a_ratio_is_that_of_the_same_round() -> None:
    # a machine that slows down threefold from round to round leaves the ratio as it is
    found = Rounds({"a": (2.0, 6.0, 18.0), "b": (1.0, 3.0, 9.0)})
    assert found.ratio("a", "b") == Spread(2.0, 2.0, 2.0)
    assert found.ratio("b", "a", factor=4.0) == Spread(2.0, 2.0, 2.0)
    assert found.time("a") == Spread(6.0, 4.0, 12.0)


def test_the_spread_is_the_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Spread(3.0, 2.0, 4.0)
    assert Spread(3.0, 2.0, 4.0).times(10) == Spread(30.0, 20.0, 40.0)


def test_what_is_too_short_for_the_clock_is_called_often() -> None:
    work = Work()
    found = measure({"tiny": work.run("tiny", 2.0**-10)}, stopwatch_of(work.clock), least_s=0.5)
    assert found.seconds["tiny"] == (2.0**-10,) * core.LEAST_ROUNDS
    # 1 + 1 calls find that 512 are needed, and a turn is 1 + 512
    assert len(work.calls) == 2 + 512 + 513 * core.LEAST_ROUNDS


def test_a_clock_that_stands_still_ends() -> None:
    calls = []
    count = core._calls(lambda: None, lambda run, n: calls.append(n) or 0.0, 0.1)
    assert count == core.MOST_CALLS
    assert calls == [16**n for n in range(5)]


def test_which_clock_is_read() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert core.stopwatch_for(gpu, 1) is core.cuda_elapsed
    # asleep, a process takes no CPU time
    asleep = (lambda: time.sleep(0.05)), 1
    assert core.stopwatch_for(cpu, 1)(*asleep) < core.stopwatch_for(cpu, 2)(*asleep)


def test_the_time_on_a_gpu_is_that_between_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            said.append("event")

        def synchronize(self) -> None:
            said.append("wait")

        def elapsed_time(self, end: object) -> float:
            return 250.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert core.cuda_elapsed(lambda: said.append("call"), 2) == 0.25
    assert said == ["event", "call", "call", "event", "wait"]


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    seen = []

    def fail() -> None:
        seen.append(torch.get_num_threads())
        raise KeyError

    with pytest.raises(KeyError), threads_set(2):
        fail()
    assert seen == [2]
    assert torch.get_num_threads() == before
