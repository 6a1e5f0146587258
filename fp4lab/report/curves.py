"""Loss curves: read from a run's `metrics.jsonl`, smoothed, and set against the baseline's.

A run that was killed may have ended in the middle of a line, which is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fp4lab.train import metrics

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """Losses in nats at increasing steps."""

    steps: Floats
    losses: Floats


@dataclass(frozen=True)
class Curve:
    """One run: the training loss of each logged step and the validation loss of each evaluation."""

    train: Series
    evaluation: Series


def read_curve(path: Path) -> Curve:
    """Read a run's metrics; a missing file gives a curve without points."""
    points: dict[str, dict[int, float]] = {"train": {}, "eval": {}}
    for event in metrics.read(path) if path.is_file() else []:
        if event["kind"] in points and "loss" in event:
            points[event["kind"]][event["step"]] = event["loss"]
    return Curve(train=_series(points["train"]), evaluation=_series(points["eval"]))


def _series(points: dict[int, float]) -> Series:
    ordered = sorted(points.items())
    return Series(
        steps=np.array([step for step, _ in ordered], dtype=np.float64),
        losses=np.array([loss for _, loss in ordered], dtype=np.float64),
    )


def window(points: int) -> int:
    """The running mean's width for a curve of so many losses: odd, about a fortieth of it."""
    return points // 80 * 2 + 1


def running_mean(steps: Floats, losses: Floats, width: int) -> tuple[Floats, Floats]:
    """The mean over `width` points around each step (odd), where all of them exist.

    The ends are left out: a window cut off there would be off centre, and the curve would seem to
    turn.
    """
    if len(losses) < width:
        return steps[:0], losses[:0]
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    half = width // 2
    return steps[half : len(steps) - half], np.asarray((sums[width:] - sums[:-width]) / width)


def relative_difference(
    curves: Sequence[Series], baseline: Sequence[Series], width: int
) -> tuple[Floats, Floats]:
    """Steps, and the running mean of `curves` in percent above the baseline's, mean over the runs.

    The runs pair up in order; only steps that all of them have are used.
    """
    pairs = list(zip(curves, baseline, strict=True))
    steps = pairs[0][0].steps if pairs else np.zeros(0)
    for series in (series for pair in pairs for series in pair):
        steps = np.intersect1d(steps, series.steps)
    if not len(steps):
        return steps, steps
    centres, _ = running_mean(steps, steps, width)
    percent = [
        100.0 * (_mean_at(run, steps, width) / _mean_at(reference, steps, width) - 1.0)
        for run, reference in pairs
    ]
    return centres, np.mean(percent, axis=0)


def _mean_at(series: Series, steps: Floats, width: int) -> Floats:
    return running_mean(steps, series.losses[np.searchsorted(series.steps, steps)], width)[1]


def thin(steps: Floats, values: Floats, most: int = 400) -> tuple[Floats, Floats]:
    """Every k-th point and the last, at most about `most`: a figure cannot show more."""
    stride = max(1, len(steps) // most)
    keep = np.unique(np.append(np.arange(0, len(steps), stride), max(len(steps) - 1, 0)))
    return (steps[keep], values[keep]) if len(steps) else (steps, values)
