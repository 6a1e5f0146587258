"""The figures of a comparison; each function returns a matplotlib Figure and shows nothing.

Curves are smoothed and thinned for the eye only: the numbers come from `summary.json`. A recipe has
the place and the colour that its place among those given says, whatever its loss, so that both stay
when a recipe is added.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fp4lab.report import style
from fp4lab.report.curves import Curve, relative_difference, running_mean, thin, window
from fp4lab.report.summary import DIVERGED, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Curves = Mapping[str, Mapping[int, Curve]]
Tails = dict[str, list[NDArray[np.float64]]]
#: the part of the losses that sets the range of a picture: a spike is no reason to flatten the rest
SHOWN = 0.99


def widest_window(curves: Curves) -> int:
    """The widest of the running means in the figures of these curves, in points."""
    every = [curve for runs in curves.values() for curve in runs.values()]
    return max((window(len(curve.train.steps)) for curve in every), default=1)


def loss_curves(curves: Curves, baseline: str, apart: Collection[str] = ()) -> Figure:
    """Loss in nats against the step: lines are smoothed training losses, dots are evaluations.

    `curves[recipe][seed]`; one line a run, one colour a recipe. The recipes in `apart`, which
    diverged or failed, do not set the range; what leaves the picture is named above it.
    """
    figure = style.new_figure(7.6, 4.2)
    ax = style.axes(figure, "step", "loss (nats)")
    colours, dashes = style.colours(list(curves), baseline), style.dashes(list(curves))
    tails: Tails = {name: [] for name in curves}
    lines: dict[str, Line2D] = {}
    for name, runs in curves.items():
        for curve in runs.values():
            width = window(len(curve.train.steps))
            steps, losses = running_mean(curve.train.steps, curve.train.losses, width)
            (lines[name],) = ax.plot(*thin(steps, losses), linewidth=1.3,
                                     linestyle=dashes[name], color=colours[name])  # fmt: skip
            ax.plot(curve.evaluation.steps, curve.evaluation.losses, "o", markersize=3.5,
                    color=colours[name])  # fmt: skip
            tails[name] += [_tail(losses), curve.evaluation.losses]
    _focus(ax, tails, apart)
    style.legend(ax, lines)
    return figure


def relative_curves(curves: Curves, baseline: str, apart: Collection[str] = ()) -> Figure:
    """Loss in percent above the baseline's, per recipe, mean over the seeds that both have."""
    figure = style.new_figure(7.6, 3.6)
    ax = style.axes(figure, "step", f"loss above {style.plain(baseline)} (%)")
    colours, dashes = style.colours(list(curves), baseline), style.dashes(list(curves))
    ax.axhline(0.0, color=style.GREY, linewidth=1.0)
    reference = curves.get(baseline, {})
    tails: Tails = {baseline: [np.zeros(1)]}
    lines: dict[str, Line2D] = {}
    for name, runs in curves.items():
        shared = sorted(runs.keys() & reference.keys())
        if name == baseline or not shared:
            continue
        ours, theirs = [runs[s] for s in shared], [reference[s] for s in shared]
        width = window(min(len(curve.train.steps) for curve in (*ours, *theirs)))
        steps, percent = relative_difference(
            [curve.train for curve in ours], [curve.train for curve in theirs], width
        )
        (lines[name],) = ax.plot(*thin(steps, percent), color=colours[name],
                                 linestyle=dashes[name], linewidth=1.3)  # fmt: skip
        steps, points = relative_difference(
            [curve.evaluation for curve in ours], [curve.evaluation for curve in theirs], 1
        )
        ax.plot(steps, points, "o", markersize=3.5, color=colours[name])
        tails[name] = [_tail(percent), points]
    _focus(ax, tails, apart)
    style.legend(ax, lines)
    return figure


def _tail(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """All but the first twentieth, whose fall would fill the picture."""
    return values[len(values) // 20 :]


def _focus(ax: Axes, tails: Tails, apart: Collection[str]) -> None:
    """Set the range by the recipes that are not `apart`, and name those that leave it."""
    every = [line for lines in tails.values() for line in lines]
    shown = [line for name in tails if name not in apart for line in tails[name]] or every
    values = np.concatenate(shown)
    finite = values[np.isfinite(values)]
    if not len(finite) or finite.max() == finite.min():
        return
    ends = [float(line[-1]) for line in shown if len(line) and np.isfinite(line[-1])]
    low, high = float(finite.min()), max([float(np.quantile(finite, SHOWN)), *ends])
    margin = 0.08 * (high - low)
    low, high = low - margin, high + margin
    ax.set_ylim(low, high)
    leaving = [
        style.plain(name)
        for name, lines in tails.items()
        if any(not low <= value <= high for line in lines for value in line[len(line) // 2 :])
    ]
    if leaving:
        ax.set_title(f"leaves the picture: {', '.join(leaving)}", loc="left", fontsize=9,
                     color=style.INK)  # fmt: skip


def gap_bars(summary: Summary) -> Figure:
    """The final gap of each recipe in nats; whiskers are the confidence interval over the seeds.

    The bar of a recipe that diverged is cut off where those of the others need no more room.
    """
    names = [n for n, r in summary.recipes.items() if r.gap is not None and n != summary.baseline]
    figure = style.new_figure(7.6, 0.9 + 0.45 * max(len(names), 1))
    ax = style.axes(figure, f"validation loss above {style.plain(summary.baseline)} (nats)", "")
    ax.grid(visible=False, axis="y")
    colours = style.colours(list(summary.recipes), summary.baseline)
    ends: dict[str, list[float]] = {}
    for row, name in enumerate(names):
        recipe = summary.recipes[name]
        gap = recipe.gap or 0.0
        ax.barh(row, gap, height=0.6, color=colours[name])
        low, high = recipe.interval or (gap, gap)
        if recipe.interval:
            ax.errorbar(gap, row, xerr=[[gap - low], [high - gap]], color=style.INK, capsize=4)
        note = f", {DIVERGED}" if recipe.diverged else ""
        label = f"{gap:+.4f} ({recipe.gap_percent:+.2f} %){note}"
        # beside the axes, where neither bar, whisker nor grid can meet it
        ax.annotate(label, (1.02, row), xycoords=("axes fraction", "data"), va="center",
                    color=style.INK)  # fmt: skip
        ends[name] = [gap, low, high]
    ax.set_yticks(range(len(names)), labels=[style.plain(name) for name in names])
    ax.invert_yaxis()
    sound = [x for name in names if not summary.recipes[name].diverged for x in ends[name]]
    if sound:
        low, high = min(0.0, *sound), max(0.0, *sound)
        margin = 0.05 * (high - low) or 1.0
        ax.set_xlim(low - margin * (low < 0), high + margin)
    ax.axvline(0.0, color=style.INK, linewidth=0.8)
    return figure
