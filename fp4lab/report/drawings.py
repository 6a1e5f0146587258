"""Which figures a report has, with the words that stand for them where they cannot be seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fp4lab.instruments.error_rows import LayerErrors
from fp4lab.report import words
from fp4lab.report.digest import Digest, digest
from fp4lab.report.error_map import Share, share_map, sqnr_map
from fp4lab.report.figures import gap_bars, loss_curves, relative_curves, widest_window
from fp4lab.report.folder import Findings
from fp4lab.report.summary import FAILED, RecipeSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure, its name in the page, title, caption, and `alt`: what it shows, in words."""

    name: str
    title: str
    figure: Figure
    caption: str
    alt: str


def drawings(found: Findings) -> Iterator[Drawing]:
    """The figures for which there is something to show."""
    summary, curves = found.summary, found.curves
    diverged = [name for name, recipe in summary.recipes.items() if recipe.diverged]
    apart = diverged + [name for name, r in summary.recipes.items() if r.verdict == FAILED]
    width = widest_window(curves)
    mean = f"lines, running mean over {width} logged steps" if width > 1 else "lines, not smoothed"
    aside = "A recipe that is named above the picture leaves it."
    losses = ", ".join(f"{n} {words.number(summary.recipes[n].val_loss)}" for n in summary.order)
    gaps = ", ".join(
        f"{name} {_gap(summary.recipes[name], words.level(summary))}"
        for name in summary.order
        if summary.recipes[name].gap is not None and name != summary.baseline
    )
    if gaps:
        yield Drawing(
            "gaps",
            "Gaps",
            gap_bars(summary),
            "Final validation loss above the baseline's. Whiskers, where there are several seeds,"
            f" are the {words.level(summary)} interval."
            + (" The bar of a recipe that diverged may be cut off." if diverged else ""),
            f"Bars: final gap in nats to {summary.baseline}: {gaps}.",
        )
    if any(len(curve.train.steps) for runs in curves.values() for curve in runs.values()):
        yield Drawing(
            "loss",
            "Loss curves",
            loss_curves(curves, summary.baseline, apart),
            f"Training loss ({mean}) and validation loss (dots), one line for each seed. {aside}",
            f"Lines: loss against step for every recipe. Final validation loss: {losses}.",
        )
    if gaps:
        yield Drawing(
            "relative",
            "Relative difference",
            relative_curves(curves, summary.baseline, apart),
            f"Loss in percent above the baseline's on the same batches: training ({mean}) and"
            f" validation (dots), mean over the seeds. {aside}",
            f"Lines: loss in percent above {summary.baseline} against step. Final gaps: {gaps}.",
        )
    yield from _error_drawings(found)


def _gap(recipe: RecipeSummary, level: str) -> str:
    sure = f" ({level} interval {words.interval(recipe.interval)})" if recipe.interval else ""
    return words.number(recipe.gap, sign=True) + sure


def _error_drawings(found: Findings) -> Iterator[Drawing]:
    summary = found.summary
    given = {name: found.errors[name] for name in summary.recipes if name in found.errors}
    errors = {name: e for name, e in given.items() if name != summary.baseline and e.operands}
    if not errors:
        return
    where = (
        "Columns: operands and product of the forward GEMM (X, W, Y), of the input gradient"
        " (dY, W^T, dX) and of the weight gradient (dY^T, X^T, dW)."
    )
    seeds = sorted({min(map(int, summary.recipes[name].val_losses), default=0) for name in errors})
    yield Drawing(
        "sqnr",
        "Where the error arises",
        sqnr_map(errors),
        "Signal to quantization noise of each trained model (seed"
        f" {', '.join(map(str, seeds))}) on its last training batch, against full precision on the"
        f" same tensors; higher is better. The baseline {summary.baseline} is left out. {where}",
        "Heat map: SQNR in dB of every layer's operands and products. Products:"
        f" {'; '.join(_lowest(row) for row in digest(errors) if row.sqnr_db is not None)}.",
    )
    shares: dict[Share, str] = {
        "underflow": "Percent of an operand's nonzero values that became zero",
        "saturation": "Percent of an operand's values beyond the largest number of their block",
    }
    for share, what in shares.items():
        if any(getattr(row, share) for found in errors.values() for row in found.operands):
            yield Drawing(
                share,
                share.capitalize(),
                share_map(errors, share),
                f"{what}, on the same batch of the same models.",
                f"Heat map: {share} in percent of every layer's operands. Highest:"
                f" {'; '.join(_highest(name, found, share) for name, found in errors.items())}.",
            )


def _lowest(row: Digest) -> str:
    return (
        f"{row.recipe} {row.product} median {words.number(row.sqnr_db, 1)},"
        f" lowest {words.number(row.lowest_db, 1)} in {row.layer}"
    )


def _highest(name: str, found: LayerErrors, share: Share) -> str:
    worst = max(found.operands, key=lambda row: getattr(row, share))
    return f"{name} {100 * getattr(worst, share):.1f} ({worst.operand} of {worst.layer})"
