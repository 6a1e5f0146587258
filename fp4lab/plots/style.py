"""Axes and colours.

The colours keep a contrast of at least 3:1 on white and on near-black (WCAG 2.2, success criterion
1.4.11), and blue and orange stay apart for the colour-blind. Text keeps the colour of the axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, PURPLE = "#2f7de1", "#d95f1e", "#1f9564", "#b455c8"
GREY = "#7f8489"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE)
MARKERS = ("o", "s", "^", "D")


def axes(ax: Axes | None, x_label: str, y_label: str, *, size: tuple[float, float]) -> Axes:
    """The given axes, or those of a new figure of a size in inches; `labelled`."""
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(figsize=size, layout="constrained")
    return labelled(ax, x_label, y_label)


def labelled(ax: Axes, x_label: str, y_label: str) -> Axes:
    """The axes with labels and a light grid, without the top and right of the frame."""
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.set_axisbelow(True)
    ax.grid(visible=True, color=GREY, alpha=0.25, linewidth=0.6)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def legend(ax: Axes) -> None:
    """Names of what is drawn, without a frame."""
    ax.legend(frameon=False, labelcolor=ink(ax))


def ink(ax: Axes) -> str:
    """The colour of text on these axes."""
    return str(ax.xaxis.label.get_color())


def next_look(ax: Axes) -> tuple[str, str]:
    """Colour and marker for one more curve on axes where curves are added one at a time."""
    count = sum(1 for line in ax.get_lines() if line.get_marker() in MARKERS)
    return CYCLE[count % len(CYCLE)], MARKERS[count % len(MARKERS)]
