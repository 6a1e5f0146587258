"""From the runs' results to the summary: gaps, intervals, order and verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fp4lab.report.summary import (
    BASELINE,
    DIVERGED,
    FAILED,
    NO_BASELINE,
    Failure,
    Neighbours,
    RecipeSummary,
    Summary,
)
from fp4lab.studies.statistics import PairedGap, paired_gap, sampling_error
from fp4lab.studies.timing import StepTime


@dataclass(frozen=True)
class Finished:
    """What a run that reached its end measured; losses in nats.

    `start` and `lowest` are training losses, of the first step and the lowest; `guess` is the loss
    of a guess that finds every answer as likely, infinite where it is not known.
    """

    val_loss: float
    bits_per_byte: float | None
    batch_losses: tuple[float, ...]
    start: float = math.inf
    lowest: float = math.inf
    guess: float = math.inf

    @property
    def diverged(self) -> bool:
        """Whether it ended well above its start, or above the guess it had once been better than.

        A short run may not be better than the guess yet; that is no divergence. Nor is a start that
        a batch of held-out data exceeds by chance: 5 percent is more than batches differ by.
        """
        start = self.start + 0.05 * abs(self.start)
        limit = min(start, self.guess) if self.lowest < self.guess else start
        return not (math.isfinite(self.val_loss) and self.val_loss <= limit)


NO_SHARED_SEED = "no gap: no seed finished in both"

Runs = Mapping[str, Mapping[int, Finished | Failure]]


def summarize(
    runs: Runs,
    baseline: str,
    *,
    confidence: float,
    times: Mapping[str, StepTime],
    diffs: Mapping[str, str],
    notes: tuple[str, ...] = (),
) -> Summary:
    """The summary of `runs[recipe][seed]`.

    Args:
        runs: every run's result, or how it failed.
        baseline: the recipe that the others are held against.
        confidence: of the intervals, e.g. 0.95.
        times: step times of the recipes that were timed.
        diffs: for each recipe, how it differs from the baseline, in words.
        notes: remarks for the report.
    """
    finished = {
        name: {seed: run for seed, run in of_recipe.items() if isinstance(run, Finished)}
        for name, of_recipe in runs.items()
    }
    gaps = {name: _gap(finished, name, baseline, confidence) for name in runs}
    order = _order(finished, gaps)
    return Summary(
        baseline=baseline,
        order=order,
        recipes={
            name: _recipe(
                runs[name],
                gaps[name],
                finished=finished[name],
                baseline=finished[baseline],
                is_baseline=name == baseline,
                time=times.get(name),
                diff=diffs[name],
            )
            for name in runs
        },
        neighbours=tuple(
            _neighbours(finished, better, worse, confidence)
            for better, worse in pairwise(name for name in order if finished[name])
        ),
        confidence=confidence,
        notes=notes,
    )


_Losses = Mapping[str, Mapping[int, Finished]]


def _gap(finished: _Losses, name: str, baseline: str, confidence: float) -> PairedGap | None:
    return paired_gap(
        {seed: run.val_loss for seed, run in finished[name].items()},
        {seed: run.val_loss for seed, run in finished[baseline].items()},
        confidence=confidence,
    )


def _order(finished: _Losses, gaps: Mapping[str, PairedGap | None]) -> tuple[str, ...]:
    """By paired gap where there is one, else by loss; recipes without a finished run come last."""

    def key(name: str) -> tuple[bool, bool, float]:
        gap = gaps[name]
        value = gap.mean if gap else _mean(finished[name]) or 0.0
        return not finished[name], gap is None, value

    return tuple(sorted(finished, key=key))


def _mean(runs: Mapping[int, Finished]) -> float | None:
    return float(np.mean([run.val_loss for run in runs.values()])) if runs else None


def _recipe(
    runs: Mapping[int, Finished | Failure],
    gap: PairedGap | None,
    *,
    finished: Mapping[int, Finished],
    baseline: Mapping[int, Finished],
    is_baseline: bool,
    time: StepTime | None,
    diff: str,
) -> RecipeSummary:
    bits = [run.bits_per_byte for run in finished.values() if run.bits_per_byte is not None]
    return RecipeSummary(
        val_loss=_mean(finished),
        val_losses={str(seed): run.val_loss for seed, run in sorted(finished.items())},
        bits_per_byte=float(np.mean(bits)) if bits else None,
        gap=gap.mean if gap else None,
        gap_percent=gap.percent if gap else None,
        interval=None if is_baseline or not gap else gap.interval,
        interval_percent=None if is_baseline or not gap else gap.percent_interval,
        seeds=len(gap.seeds) if gap else len(finished),
        verdict=_verdict(finished, gap, baseline, is_baseline=is_baseline),
        validation_error=None
        if is_baseline
        else sampling_error(_batch_losses(finished), _batch_losses(baseline)),
        step_time_ratio=time.ratio if time else None,
        step_time_spread=time.spread if time else None,
        failed=tuple(run for run in runs.values() if isinstance(run, Failure)),
        diff=diff,
        diverged=_diverged(finished),
    )


def _batch_losses(finished: Mapping[int, Finished]) -> dict[int, tuple[float, ...]]:
    return {seed: run.batch_losses for seed, run in finished.items()}


def _diverged(finished: Mapping[int, Finished]) -> tuple[int, ...]:
    return tuple(seed for seed, run in sorted(finished.items()) if run.diverged)


def _verdict(
    finished: Mapping[int, Finished],
    gap: PairedGap | None,
    baseline: Mapping[int, Finished],
    *,
    is_baseline: bool,
) -> str:
    if not finished:
        return FAILED
    if is_baseline:
        return BASELINE
    if _diverged(finished):
        return DIVERGED
    if not baseline:
        return NO_BASELINE
    return gap.verdict if gap else NO_SHARED_SEED


def _neighbours(finished: _Losses, better: str, worse: str, confidence: float) -> Neighbours:
    gap = _gap(finished, worse, better, confidence)
    verdict = gap.verdict if gap else NO_SHARED_SEED
    if any(_diverged(finished[name]) for name in (better, worse)):
        verdict = DIVERGED
    return Neighbours(
        better=better,
        worse=worse,
        gap=gap.mean if gap else None,
        interval=gap.interval if gap else None,
        verdict=verdict,
    )
