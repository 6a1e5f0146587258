"""The figures of a comparison; each function returns a matplotlib Figure and shows nothing.

Curves are smoothed and thinned for the eye only: the numbers come from `summary.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fp4lab.report import style
from fp4lab.report.curves import Curve, relative_difference, smooth, thin
from fp4lab.report.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curves = Mapping[str, Mapping[int, Curve]]


def smoothing_width(points: int) -> int:
    """The running mean's width for a curve of `points` losses: a fortieth of it, at least one."""
    return max(1, points // 40)


def loss_curves(curves: Curves, baseline: str) -> Figure:
    """Loss in nats against the step: lines are smoothed training losses, dots are evaluations.

    `curves[recipe][seed]`; one line a run, one colour a recipe.
    """
    figure = style.new_figure(7.6, 4.2)
    ax = style.axes(figure, "step", "loss (nats)")
    colours, dashes = style.colours(list(curves), baseline), style.dashes(list(curves))
    tail: list[float] = []
    for name, runs in curves.items():
        for i, curve in enumerate(runs.values()):
            train = smooth(curve.train.losses, smoothing_width(len(curve.train.losses)))
            steps, losses = thin(curve.train.steps, train)
            ax.plot(steps, losses, linewidth=1.3, linestyle=dashes[name], color=colours[name],
                    label=name if i == 0 else None)  # fmt: skip
            ax.plot(curve.evaluation.steps, curve.evaluation.losses, "o", markersize=3.5,
                    color=colours[name])  # fmt: skip
            tail += [*train[len(train) // 20 :].tolist(), *curve.evaluation.losses.tolist()]
    _focus(ax, tail)
    style.legend(ax)
    return figure


def _focus(ax: Axes, values: Sequence[float]) -> None:
    """Let the first twentieth of a run leave the picture, or its fall would fill it."""
    finite = [value for value in values if np.isfinite(value)]
    if finite and max(finite) > min(finite):
        margin = 0.05 * (max(finite) - min(finite))
        ax.set_ylim(min(finite) - margin, max(finite) + margin)


def relative_curves(curves: Curves, baseline: str) -> Figure:
    """Loss in percent above the baseline's, per recipe, mean over the seeds that both have."""
    figure = style.new_figure(7.6, 3.6)
    ax = style.axes(figure, "step", f"loss above {baseline} (%)")
    colours, dashes = style.colours(list(curves), baseline), style.dashes(list(curves))
    ax.axhline(0.0, color=style.GREY, linewidth=1.0)
    reference = curves.get(baseline, {})
    tail: list[float] = []
    for name, runs in curves.items():
        shared = sorted(runs.keys() & reference.keys())
        if name == baseline or not shared:
            continue
        ours, theirs = [runs[s] for s in shared], [reference[s] for s in shared]
        width = smoothing_width(min(len(curve.train.steps) for curve in (*ours, *theirs)))
        steps, percent = relative_difference(
            [curve.train for curve in ours], [curve.train for curve in theirs], width
        )
        ax.plot(*thin(steps, percent), color=colours[name], linestyle=dashes[name],
                linewidth=1.3, label=name)  # fmt: skip
        steps, points = relative_difference(
            [curve.evaluation for curve in ours], [curve.evaluation for curve in theirs], 1
        )
        ax.plot(steps, points, "o", markersize=3.5, color=colours[name])
        tail += [0.0, *percent[len(percent) // 20 :].tolist(), *points.tolist()]
    _focus(ax, tail)
    style.legend(ax)
    return figure


def gap_bars(summary: Summary) -> Figure:
    """The final gap of each recipe in nats; whiskers are the confidence interval over the seeds."""
    names = [n for n in summary.order if summary.recipes[n].gap is not None]
    names = [n for n in names if n != summary.baseline]
    figure = style.new_figure(7.6, 0.9 + 0.45 * max(len(names), 1))
    ax = style.axes(figure, f"validation loss above {summary.baseline} (nats)", "")
    colours = style.colours(summary.order, summary.baseline)
    for row, name in enumerate(names):
        recipe = summary.recipes[name]
        gap = recipe.gap or 0.0
        ax.barh(row, gap, height=0.6, color=colours[name])
        end = gap
        if recipe.interval:
            low, high = recipe.interval
            ax.errorbar(gap, row, xerr=[[gap - low], [high - gap]], color=style.INK, capsize=4)
            end = high
        label = f" {gap:+.4f} ({recipe.gap_percent:+.2f} %)"
        ax.annotate(label, (max(end, 0.0), row), va="center", color=style.INK)
    ax.set_yticks(range(len(names)), labels=names)
    ax.invert_yaxis()
    ax.margins(x=0.25)
    ax.axvline(0.0, color=style.INK, linewidth=0.8)
    return figure
