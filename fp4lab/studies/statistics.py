"""How sure a gap in loss is: paired differences over seeds, with a Student-t interval.

Two runs are paired when they share the seed: the same initial weights, data order and rounding
noise key, so what differs is the recipe. With d_s the difference of seed s and n seeds,

    mean = sum d_s / n,   sd^2 = sum (d_s - mean)^2 / (n - 1),
    interval = mean -+ t(n - 1, (1 + confidence) / 2) sd / sqrt(n).

One seed has no spread to estimate, so it has no interval and no verdict. The interval covers the
seed only: it is not widened for the number of recipes compared, nor for having sorted them first.
`sampling_error` is another thing: how far the gap of these very models would move on other
validation data of the same amount. It says nothing about another seed.

Unpaired tests were left out: the spread of the losses themselves is shared by both runs and would
only hide the difference. SciPy's quantile comes from `scipy.special`, as `scipy.stats` takes a
second to import.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fp4lab.errors import InputError

ONE_SEED = "one seed: no interval"


@dataclass(frozen=True)
class PairedGap:
    """A mean paired difference in nats, and what can be said about it.

    `percent` is `100 * mean / (mean loss of the baseline over the same seeds)`. `interval` and
    `percent_interval` are None when fewer than two seeds are shared.

    >>> gap = PairedGap(0.2, 10.0, (0, 1), (-0.1, 0.5), (-5.0, 25.0))
    >>> gap.verdict
    'unresolved'
    """

    mean: float
    percent: float
    seeds: tuple[int, ...]
    interval: tuple[float, float] | None
    percent_interval: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """`resolved` where the interval excludes zero, else `unresolved` or `ONE_SEED`."""
        if self.interval is None:
            return ONE_SEED
        low, high = self.interval
        return "resolved" if low > 0 or high < 0 else "unresolved"


def student_interval(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """The Student-t confidence interval of the mean of `values`; None for fewer than two.

    Raises:
        InputError: a confidence that is not between 0 and 1.

    >>> low, high = student_interval([1.0, 2.0, 3.0], 0.95)
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence={confidence} must lie between 0 and 1; use 0.95")
    if len(values) < 2:
        return None
    from scipy.special import stdtrit

    mean = float(np.mean(values))
    half = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * standard_error(values)
    return mean - half, mean + half


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of at least two independent values."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def paired_gap(
    losses: Mapping[int, float], baseline: Mapping[int, float], *, confidence: float = 0.95
) -> PairedGap | None:
    """The gap of `losses` to `baseline` (each seed -> loss in nats) over the seeds both have.

    Losses that are not finite do not count. None when no seed is left.

    Raises:
        InputError: a confidence (of the interval) that is not between 0 and 1.

    >>> gap = paired_gap({0: 2.25, 1: 2.5, 2: 9.0}, {0: 2.0, 1: 2.0})
    >>> gap.mean, gap.percent, gap.seeds, gap.verdict
    (0.375, 18.75, (0, 1), 'unresolved')
    """
    shared = tuple(
        seed
        for seed in sorted(losses.keys() & baseline.keys())
        if math.isfinite(losses[seed]) and math.isfinite(baseline[seed])
    )
    if not shared:
        return None
    differences = [losses[seed] - baseline[seed] for seed in shared]
    reference = float(np.mean([baseline[seed] for seed in shared]))
    mean = float(np.mean(differences))
    interval = student_interval(differences, confidence)
    return PairedGap(
        mean=mean,
        percent=percent_of(mean, reference),
        seeds=shared,
        interval=interval,
        percent_interval=interval
        and (percent_of(interval[0], reference), percent_of(interval[1], reference)),
    )


def percent_of(difference: float, reference: float) -> float:
    """`100 * difference / |reference|`; NaN for a reference of zero."""
    return 100.0 * difference / abs(reference) if reference else math.nan


def sampling_error(
    losses: Mapping[int, Sequence[float]], baseline: Mapping[int, Sequence[float]]
) -> float | None:
    """The standard error of a gap from the choice of validation data alone, in nats.

    Both map a seed to its loss on each validation batch, in the same order. The differences are
    averaged over the shared seeds batch by batch, then treated as independent draws. A whole batch
    is one draw, because neighbouring windows of one text are alike. None for fewer than two
    batches, or where the batches do not match.

    >>> sampling_error({0: [1.0, 3.0]}, {0: [1.0, 2.0]})
    0.5
    """
    shared = sorted(losses.keys() & baseline.keys())
    if not shared or len({len(run[seed]) for run in (losses, baseline) for seed in shared}) != 1:
        return None
    differences = np.mean([np.subtract(losses[seed], baseline[seed]) for seed in shared], axis=0)
    return standard_error(differences.tolist()) if len(differences) > 1 else None
