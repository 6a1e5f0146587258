"""The timing pass on a clock that only the steps move."""

from __future__ import annotations

import pytest

from fp4lab.studies.timing import BUDGET_S, LEAST_ROUNDS, MOST_ROUNDS, expected_seconds, step_times


class Bench:
    """Steps that take as long as they say, on a machine that slows down with every round."""

    def __init__(self, **seconds: float) -> None:
        self.now = 0.0
        self.order: list[str] = []
        self.steps = {name: self._step(name, length) for name, length in seconds.items()}

    def _step(self, name: str, length: float):  # type: ignore[no-untyped-def]
        def step(index: int) -> None:
            self.order.append(name)
            # the first call compiles and allocates
            self.now += 1000.0 if index == 0 else length * 1.1**index

        return step

    def clock(self) -> float:
        return self.now


def test_ratio_is_free_of_drift_and_warm_up() -> None:
    bench = Bench(bf16=0.5, nvfp4=1.0)
    times = step_times(bench.steps, "bf16", budget_s=1e9, clock=bench.clock)
    assert times["bf16"].ratio == 1.0
    assert times["nvfp4"].ratio == pytest.approx(2.0)
    assert times["nvfp4"].spread == pytest.approx((2.0, 2.0))
    assert times["nvfp4"].rounds == MOST_ROUNDS
    assert bench.order == ["bf16", "nvfp4"] * (MOST_ROUNDS + 1)


def test_slow_steps_stop_at_the_budget() -> None:
    bench = Bench(bf16=1.0, nvfp4=1.0)
    times = step_times(bench.steps, "bf16", budget_s=2020.0, clock=bench.clock)
    # warm-up takes 2000 s; rounds of about 2.2, 2.4, ... s fill the remaining 20
    assert LEAST_ROUNDS < times["bf16"].rounds < MOST_ROUNDS
    assert expected_seconds(2.0) == 2.0 + BUDGET_S
    assert expected_seconds(100.0) == 100.0 * (1 + LEAST_ROUNDS)
    assert expected_seconds(0.01) == 0.01 * (1 + MOST_ROUNDS)
    bench = Bench(bf16=1.0, nvfp4=1.0)
    assert step_times(bench.steps, "bf16", budget_s=0.0, clock=bench.clock)["bf16"].rounds == (
        LEAST_ROUNDS
    )
