"""The paired statistics against closed forms that need no quantile table, and by coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fp4lab.errors import InputError
from fp4lab.studies.statistics import (
    ONE_SEED,
    paired_gap,
    sampling_error,
    student_interval,
)


def closed_quantile(freedom: int, probability: float) -> float:
    """Student's quantile for 1, 2 and 4 degrees of freedom, where it has a closed form."""
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    a = 4 * probability * (1 - probability)
    if freedom == 2:
        return (2 * probability - 1) * math.sqrt(2 / a)
    assert freedom == 4
    q = math.cos(math.acos(math.sqrt(a)) / 3) / math.sqrt(a)
    return 2 * math.sqrt(q - 1)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("values", [[0.1, 0.4], [0.3, -0.2, 0.9], [1.0, 2.5, -3.0, 0.25, 7.0]])
def test_interval_equals_the_closed_form(values: list[float], confidence: float) -> None:
    n = len(values)
    mean = math.fsum(values) / n
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = closed_quantile(n - 1, (1 + confidence) / 2) * math.sqrt(variance / n)
    interval = student_interval(values, confidence)
    assert interval == pytest.approx((mean - half, mean + half), rel=1e-12)


def test_interval_covers_the_true_mean_as_often_as_it_says() -> None:
    """The number of hits is binomial(n, 0.95); five deviations fail once in 1.7 million draws."""
    trials, confidence, truth = 4000, 0.95, 0.01
    draws = np.random.default_rng(20250925).normal(truth, 0.002, size=(trials, 3))
    intervals = [student_interval(row.tolist(), confidence) for row in draws]
    hits = sum(low <= truth <= high for low, high in filter(None, intervals))
    deviation = math.sqrt(trials * confidence * (1 - confidence))
    assert abs(hits - trials * confidence) <= 5 * deviation


def test_pairing_removes_what_the_seeds_share() -> None:
    rng = np.random.default_rng(3)
    level = rng.normal(1.6, 1.0, size=4)
    noise = rng.normal(0.0, 1e-4, size=4)
    baseline = dict(enumerate(level.tolist()))
    losses = dict(enumerate((level + 0.01 + noise).tolist()))
    gap = paired_gap(losses, baseline)
    assert gap is not None
    assert gap.verdict == "resolved"
    assert gap.mean == pytest.approx(0.01 + noise.mean(), abs=1e-12)
    assert gap.percent == pytest.approx(100 * gap.mean / level.mean())
    assert gap.interval is not None
    # unpaired, the same spread of 1 nat would bury a gap of 0.01
    assert gap.interval[1] - gap.interval[0] < 1e-3


def test_an_interval_with_zero_inside_is_unresolved() -> None:
    gap = paired_gap({0: 1.01, 1: 0.99, 2: 1.0}, {0: 1.0, 1: 1.0, 2: 1.0})
    assert gap is not None
    assert gap.verdict == "unresolved"


def test_identical_runs_are_unresolved_not_an_error() -> None:
    gap = paired_gap({0: 1.5, 1: 1.25}, {0: 1.5, 1: 1.25})
    assert gap is not None
    assert (gap.mean, gap.interval, gap.verdict) == (0.0, (0.0, 0.0), "unresolved")


def test_one_seed_has_no_interval_and_says_so() -> None:
    gap = paired_gap({0: 1.1}, {0: 1.0, 1: 1.2})
    assert gap is not None
    assert gap.interval is None
    assert gap.percent_interval is None
    assert gap.verdict == ONE_SEED
    assert gap.percent == pytest.approx(10.0)


def test_only_shared_finite_seeds_count() -> None:
    gap = paired_gap({0: 1.1, 1: math.nan, 2: 1.3, 5: 9.0}, {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0})
    assert gap is not None
    assert gap.seeds == (0, 2)
    assert gap.mean == pytest.approx(0.2)
    assert paired_gap({1: math.inf}, {1: 1.0}) is None
    assert paired_gap({1: 1.0}, {2: 1.0}) is None


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, -1.0])
def test_confidence_is_a_probability(confidence: float) -> None:
    with pytest.raises(InputError, match="confidence="):
        student_interval([1.0, 2.0], confidence)


def test_sampling_error_of_the_batches() -> None:
    losses = {0: [1.0, 2.0, 3.0], 1: [1.0, 2.0, 3.0]}
    baseline = {0: [0.9, 1.8, 2.7], 1: [0.9, 1.8, 2.7]}
    # differences .1 .2 .3: sd = .1, over sqrt(3)
    assert sampling_error(losses, baseline) == pytest.approx(0.1 / math.sqrt(3))
    assert sampling_error({0: [1.0]}, {0: [2.0]}) is None
    assert sampling_error({0: [1.0, 2.0]}, {0: [2.0]}) is None
    assert sampling_error({0: [1.0, 2.0]}, {1: [2.0, 1.0]}) is None


def test_sampling_error_covers_the_population_gap() -> None:
    """With 40 normal batches, the gap lies within two standard errors in 94.8 % of the draws."""
    rng = np.random.default_rng(11)
    trials, expected = 2000, 0.9475  # P(|t_39| < 2)
    hits = 0
    for _ in range(trials):
        base = rng.normal(1.6, 0.2, size=40)
        other = base + rng.normal(0.05, 0.03, size=40)
        error = sampling_error({0: other.tolist()}, {0: base.tolist()})
        assert error is not None
        hits += abs(float(np.mean(other - base)) - 0.05) < 2 * error
    assert abs(hits - trials * expected) <= 5 * math.sqrt(trials * expected * (1 - expected))
