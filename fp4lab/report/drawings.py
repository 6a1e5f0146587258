"""Which figures a report has, with the words that stand for them where they cannot be seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fp4lab.report import words
from fp4lab.report.error_map import share_map, sqnr_map
from fp4lab.report.figures import gap_bars, loss_curves, relative_curves
from fp4lab.report.folder import Findings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure, its file name, title, caption, and `alt`: what it shows, in words."""

    name: str
    title: str
    figure: Figure
    caption: str
    alt: str


def drawings(found: Findings) -> Iterator[Drawing]:
    """The figures for which there is something to show."""
    summary, curves = found.summary, found.curves
    losses = ", ".join(f"{n} {words.number(summary.recipes[n].val_loss)}" for n in summary.order)
    gaps = ", ".join(
        f"{name} {words.number(summary.recipes[name].gap, sign=True)}"
        for name in summary.order
        if summary.recipes[name].gap is not None and name != summary.baseline
    )
    if gaps:
        yield Drawing(
            "gaps",
            "Gaps",
            gap_bars(summary),
            "Final validation loss above the baseline's. Whiskers, where there are several seeds,"
            f" are the {100 * summary.confidence:g} % interval.",
            f"Bars: final gap in nats to {summary.baseline}: {gaps}.",
        )
    if any(len(curve.train.steps) for runs in curves.values() for curve in runs.values()):
        yield Drawing(
            "loss",
            "Loss curves",
            loss_curves(curves, summary.baseline),
            "Training loss (lines, running mean) and validation loss (dots).",
            f"Lines: loss against step for every recipe. Final validation loss: {losses}.",
        )
    if gaps:
        yield Drawing(
            "relative",
            "Relative difference",
            relative_curves(curves, summary.baseline),
            "Loss in percent above the baseline's on the same batches: training (lines, running"
            " mean) and validation (dots), mean over the seeds.",
            f"Lines: loss in percent above {summary.baseline} against step. Final gaps: {gaps}.",
        )
    yield from _error_drawings(found)


def _error_drawings(found: Findings) -> Iterator[Drawing]:
    baseline = found.summary.baseline
    errors = {name: e for name, e in found.errors.items() if name != baseline and e.operands}
    if not errors:
        return
    names = ", ".join(errors)
    where = (
        "Columns: operands and product of the forward GEMM (X, W, Y), of the input gradient"
        " (dY, W^T, dX) and of the weight gradient (dY^T, X^T, dW)."
    )
    yield Drawing(
        "sqnr",
        "Where the error arises",
        sqnr_map(errors),
        "Signal to quantization noise of each trained model (of the first seed) on its last"
        f" training batch, against full precision on the same tensors; higher is better. {where}",
        f"Heat map: SQNR in dB of every layer's operands and products for {names}.",
    )
    yield Drawing(
        "underflow",
        "Underflow",
        share_map(errors, "underflow"),
        "Percent of an operand's nonzero values that became zero, on the same batch.",
        f"Heat map: underflow in percent of every layer's operands for {names}.",
    )
