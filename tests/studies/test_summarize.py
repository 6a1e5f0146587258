"""The summary of complete, partly failed and hopeless comparisons."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fp4lab.errors import InputError
from fp4lab.report.summary import Failure, Summary
from fp4lab.studies.statistics import ONE_SEED
from fp4lab.studies.summarize import NO_SHARED_SEED, Finished, Runs, summarize
from fp4lab.studies.timing import StepTime


def done(loss: float, *batches: float) -> Finished:
    return Finished(val_loss=loss, bits_per_byte=loss / 0.6931471805599453, batch_losses=batches)


def summary_of(runs: Runs, baseline: str = "bf16") -> Summary:
    times = {"nvfp4": StepTime(seconds=0.02, ratio=1.5, spread=(1.4, 1.6), rounds=30)}
    return summarize(
        runs, baseline, confidence=0.95, times=times, diffs=dict.fromkeys(runs, "same")
    )


THREE_SEEDS: Runs = {
    "mxfp4": {0: done(1.75), 1: done(1.79), 2: done(1.77)},
    "bf16": {0: done(1.60), 1: done(1.61), 2: done(1.59)},
    "twin": {0: done(1.61), 1: done(1.60), 2: done(1.59)},
    "nvfp4": {0: done(1.70), 1: done(1.71), 2: done(1.70)},
}


def test_three_seeds_give_order_intervals_and_verdicts() -> None:
    summary = summary_of(THREE_SEEDS)
    assert summary.order == ("bf16", "twin", "nvfp4", "mxfp4")
    baseline, nvfp4 = summary.recipes["bf16"], summary.recipes["nvfp4"]
    assert (baseline.gap, baseline.verdict, baseline.interval) == (0.0, "baseline", None)
    assert nvfp4.gap == pytest.approx((0.10 + 0.10 + 0.11) / 3)
    assert nvfp4.gap_percent == pytest.approx(100 * (0.31 / 3) / 1.60)
    assert nvfp4.seeds == 3
    assert nvfp4.interval is not None
    assert nvfp4.interval[0] < nvfp4.gap < nvfp4.interval[1]
    assert nvfp4.verdict == "resolved"
    assert (nvfp4.step_time_ratio, nvfp4.step_time_spread) == (1.5, (1.4, 1.6))
    assert summary.recipes["mxfp4"].step_time_ratio is None
    assert summary.recipes["twin"].verdict == "unresolved"
    assert nvfp4.val_losses == {"0": 1.70, "1": 1.71, "2": 1.70}
    assert [(n.better, n.worse, n.verdict) for n in summary.neighbours] == [
        ("bf16", "twin", "unresolved"),
        ("twin", "nvfp4", "resolved"),
        ("nvfp4", "mxfp4", "resolved"),
    ]
    assert summary.neighbours[2].gap == pytest.approx((0.05 + 0.08 + 0.07) / 3)


def test_one_seed_says_so() -> None:
    runs: Runs = {name: {0: of[0]} for name, of in THREE_SEEDS.items()}
    summary = summary_of(runs)
    for name in ("twin", "nvfp4", "mxfp4"):
        assert summary.recipes[name].verdict == ONE_SEED
        assert summary.recipes[name].interval is None
        assert summary.recipes[name].seeds == 1
    assert {n.verdict for n in summary.neighbours} == {ONE_SEED}


def test_a_failed_seed_costs_its_pair_only() -> None:
    runs: Runs = {
        "bf16": {0: done(1.60), 1: Failure(1, "killed by SIGKILL twice")},
        "nvfp4": {0: done(1.70), 1: done(1.9)},
        "broken": {0: Failure(0, "NaN at step 3"), 1: Failure(1, "NaN at step 4")},
        "late": {0: Failure(0, "exit code 3"), 1: done(1.65)},
    }
    summary = summary_of(runs)
    assert summary.order == ("bf16", "nvfp4", "late", "broken")
    assert summary.recipes["nvfp4"].gap == pytest.approx(0.10)
    assert summary.recipes["nvfp4"].seeds == 1
    broken = summary.recipes["broken"]
    assert (broken.verdict, broken.gap, broken.val_loss) == ("failed", None, None)
    assert [failure.reason for failure in broken.failed] == ["NaN at step 3", "NaN at step 4"]
    assert summary.recipes["late"].verdict == NO_SHARED_SEED
    assert [(n.better, n.worse) for n in summary.neighbours] == [
        ("bf16", "nvfp4"),
        ("nvfp4", "late"),
    ]


@pytest.mark.parametrize(
    ("loss", "start", "lowest", "guess", "diverged"),
    [
        (1.7, 6.0, 1.6, 5.5, False),
        (6.4, 6.0, 6.0, math.inf, True),  # well above its own start
        (6.1, 6.0, 6.0, math.inf, False),  # as another batch may be
        (5.8, 6.0, 1.6, 5.5, True),  # above the guess, which it had been better than
        (5.8, 6.0, 5.7, 5.5, False),  # not better than the guess yet
        (6.4, 6.0, 1.6, math.inf, True),
        (5.8, 6.0, 1.6, math.inf, False),
        (math.nan, 6.0, 1.6, 5.5, True),
        (math.inf, math.inf, math.inf, math.inf, True),
    ],
)
def test_a_useless_loss_is_divergence(
    loss: float, start: float, lowest: float, guess: float, diverged: bool
) -> None:
    run = Finished(loss, None, (), start=start, lowest=lowest, guess=guess)
    assert run.diverged == diverged


def test_a_diverged_recipe_is_not_resolved() -> None:
    wild = {seed: Finished(9.0 + seed, None, (), start=6.0) for seed in (1, 2)}
    runs: Runs = {**THREE_SEEDS, "wild": {0: done(1.75), **wild}}
    summary = summary_of(runs)
    recipe = summary.recipes["wild"]
    assert (recipe.verdict, recipe.diverged, recipe.seeds) == ("diverged", (1, 2), 3)
    assert summary.recipes["nvfp4"].verdict == "resolved"
    assert summary.recipes["nvfp4"].diverged == ()
    assert (summary.neighbours[-1].worse, summary.neighbours[-1].verdict) == ("wild", "diverged")


def test_the_spread_is_that_of_the_baseline() -> None:
    assert summary_of(THREE_SEEDS).spread == pytest.approx(0.01)
    assert summary_of({name: {0: of[0]} for name, of in THREE_SEEDS.items()}).spread is None


def test_without_a_baseline_there_are_no_gaps() -> None:
    runs: Runs = {
        "bf16": {0: Failure(0, "NaN at step 3")},
        "nvfp4": {0: done(1.70)},
        "mxfp4": {0: done(1.80)},
    }
    summary = summary_of(runs)
    assert summary.order == ("nvfp4", "mxfp4", "bf16")
    for name in ("nvfp4", "mxfp4"):
        assert summary.recipes[name].gap is None
        assert summary.recipes[name].verdict == "no gap: the baseline failed"
    assert summary.recipes["bf16"].verdict == "failed"
    assert summary.neighbours[0].gap == pytest.approx(0.10)


def test_sampling_error_is_kept_apart_from_the_interval() -> None:
    runs: Runs = {
        "bf16": {0: done(1.6, 1.5, 1.7)},
        "nvfp4": {0: done(1.7, 1.58, 1.82)},
    }
    recipe = summary_of(runs).recipes["nvfp4"]
    # differences 0.08 and 0.12: standard error |0.12 - 0.08| / 2
    assert recipe.validation_error == pytest.approx(0.02)
    assert recipe.interval is None


def test_written_and_read_back(tmp_path: Path) -> None:
    runs: Runs = {**THREE_SEEDS, "broken": {0: Failure(0, "NaN at step 3")}}
    summary = summary_of(runs)
    path = tmp_path / "summary.json"
    summary.write(path)
    assert Summary.read(path) == summary
    record = json.loads(path.read_text())
    assert record["recipes"]["nvfp4"]["interval"] == list(summary.recipes["nvfp4"].interval or ())
    assert record["recipes"]["broken"]["failed"] == [{"seed": 0, "reason": "NaN at step 3"}]
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_reading_refuses_what_it_would_misread(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    with pytest.raises(InputError, match="does not exist"):
        Summary.read(path)
    path.write_text('{"schema_version": 99}')
    with pytest.raises(InputError, match="schema_version=99"):
        Summary.read(path)
    path.write_text('{"schema_ver')
    with pytest.raises(InputError, match="is damaged"):
        Summary.read(path)
