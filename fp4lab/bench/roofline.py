"""How near the operators come to a copy's bandwidth, and the products to a matmul's rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fp4lab.bench.results import Findings, Line
from fp4lab.report.style import COLOURS, GREY, INK, LIGHT, ink, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "roofline.png"
GIGA = 1e9


def roofline(findings: Findings) -> Figure | None:
    """A bar a line, with a stroke where the copy or the matmul of the same run stood.

    The left half shows bytes that must be moved over the time, the right half operations over the
    time; a half without lines is left out, and there is no figure without either.
    """
    lines = [line for line in findings.lines if line.roof]
    moving = [line for line in lines if line.bandwidth]
    multiplying = [line for line in lines if line.rate]
    halves = [
        (part, label)
        for part, label in (
            (moving, "GB/s (stroke: a copy of the same dtype)"),
            (multiplying, "GFLOP/s (stroke: torch's own product)"),
        )
        if part
    ]
    if not halves:
        return None
    tallest = max(len(part) for part, _ in halves)
    figure = new_figure(6.5 * len(halves), 1.6 + 0.24 * tallest)
    for at, (part, label) in enumerate(halves):
        ax = figure.add_subplot(1, len(halves), at + 1)
        _bars(ax, part, label)
        # bars of both halves are equally thick, the first on top
        ax.set_ylim(tallest - 0.5, -0.5)
    figure.suptitle(str(findings.machine["gpu"] or findings.machine["cpu"]), color=INK)
    return figure


def save(findings: Findings, folder: Path) -> Path | None:
    """Write the figure as a PNG into the folder; None where there is nothing to draw."""
    figure = roofline(findings)
    if figure is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    figure.savefig(path, dpi=150, facecolor=LIGHT.ground)
    return path


def _bars(ax: Axes, lines: Sequence[Line], label: str) -> None:
    places = range(len(lines))
    rates = [(line.bandwidth or line.rate or 0.0) / GIGA for line in lines]
    roofs = [(line.roof or 0.0) / GIGA for line in lines]
    ink(ax)
    ax.barh(places, rates, height=0.6, color=COLOURS[0])
    ax.vlines(roofs, [p - 0.4 for p in places], [p + 0.4 for p in places], color=INK, linewidth=2)
    ax.set_yticks(places, [line.name for line in lines], fontsize=8)
    ax.set_xlabel(label)
    ax.set_xlim(left=0)
    ax.grid(visible=True, axis="x", color=GREY, alpha=0.25, linewidth=0.6)
