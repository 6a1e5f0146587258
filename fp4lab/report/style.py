"""How figures look: one set of colours that reads on white and on near-black, and bare axes.

Figures are `matplotlib.figure.Figure` objects made directly: no pyplot, so nothing is shown, kept
or shared. Everything that is ink (text, ticks, frames) has the one colour `INK`, which the HTML
report replaces by the page's text colour. The line colours keep a contrast of at least 3:1 on both
backgrounds (WCAG 2.2, success criterion 1.4.11) and differ in line style too, so that they can be
told apart without colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1e2226"
GREY = "#7f8489"
LIGHT, DARK = "#ffffff", "#15181c"
COLOURS = ("#2f7de1", "#d95f1e", "#1f9564", "#b455c8", "#a87b00", "#d9427f", "#0e93a8")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", (0, (5, 1)), (0, (3, 1, 1, 1)))


def colours(names: Sequence[str], baseline: str) -> dict[str, str]:
    """A colour for each recipe: grey for the baseline, the palette in order for the others."""
    others = [name for name in names if name != baseline]
    chosen = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(others)}
    return {baseline: GREY, **chosen}


def dashes(names: Sequence[str]) -> dict[str, str | tuple[int, tuple[int, ...]]]:
    """A line style for each recipe."""
    return {name: DASHES[i % len(DASHES)] for i, name in enumerate(names)}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, sizes in inches; matplotlib is imported only when one is drawn."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def axes(figure: Figure, x_label: str, y_label: str) -> Axes:
    """The figure's only axes, bare and in ink."""
    ax = figure.add_subplot()
    ink(ax)
    ax.set_xlabel(x_label, color=INK)
    ax.set_ylabel(y_label, color=INK)
    ax.grid(visible=True, color=GREY, alpha=0.25, linewidth=0.6)
    return ax


def ink(ax: Axes) -> None:
    """Draw the frame and ticks in ink, leave out the top and right of the frame and the ground."""
    ax.patch.set_visible(False)
    ax.tick_params(colors=INK)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)


def legend(ax: Axes) -> None:
    """A frameless legend where there is room."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, labelcolor=INK, loc="best")
