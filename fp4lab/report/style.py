"""How the page and its figures look: colours that read on white and on near-black, and bare axes.

Figures are `matplotlib.figure.Figure` objects made directly: no pyplot, so nothing is shown, kept
or shared. Everything that is ink (text, ticks, frames) has the one colour `INK`, which the HTML
report replaces by the page's text colour. Text has a contrast of at least 4.5:1 to what it stands
on (WCAG 2.2, success criterion 1.4.3), the line colours 3:1 on both backgrounds (1.4.11). Lines
differ in style too, so that they can be told apart without colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fp4lab.plots import style as shared

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


@dataclass(frozen=True)
class Palette:
    """The page's colours: `ink`, `quiet` and `link` are text, on `ground`, `soft` or `alert`.

    `line` only separates; `edge` marks the box of a warning.
    """

    ground: str
    ink: str
    quiet: str
    link: str
    soft: str
    alert: str
    edge: str
    line: str

    def css(self) -> str:
        """The colours as custom properties."""
        return "; ".join(f"--{name}: {colour}" for name, colour in vars(self).items())


LIGHT = Palette(
    "#ffffff", "#1e2226", "#565d64", "#1a5fb4", "#f1f3f5", "#fff4e0", "#b35c00", "#d5d9dd"
)
DARK = Palette(
    "#15181c", "#e3e6e9", "#a9b1b9", "#8ab8f5", "#22272c", "#33270f", "#e0962f", "#3a4148"
)
INK = LIGHT.ink
GREY = shared.GREY
COLOURS = (*shared.CYCLE, "#a87b00", "#d9427f", "#0e93a8")
DASHES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", (0, (5, 1)), (0, (3, 1, 1, 1)))


def colours(names: Sequence[str], baseline: str) -> dict[str, str]:
    """A colour for each recipe: grey for the baseline, the palette in order for the others."""
    others = [name for name in names if name != baseline]
    chosen = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(others)}
    return {baseline: GREY, **chosen}


def dashes(names: Sequence[str]) -> dict[str, str | tuple[int, tuple[int, ...]]]:
    """A line style for each recipe."""
    return {name: DASHES[i % len(DASHES)] for i, name in enumerate(names)}


def luminance(colour: Sequence[float]) -> float:
    """Relative luminance of red, green and blue in [0, 1] (WCAG 2.2), 0 for black, 1 for white."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def text_on(colour: Sequence[float]) -> str:
    """Black or white, whichever has more contrast to a colour: never less than 4.58:1."""
    # (L + 0.05) / 0.05 against 1.05 / (L + 0.05)
    return "black" if luminance(colour) > (1.05 * 0.05) ** 0.5 - 0.05 else "white"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, sizes in inches; matplotlib is imported only when one is drawn."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def axes(figure: Figure, x_label: str, y_label: str) -> Axes:
    """The figure's only axes, bare and in ink."""
    ax = shared.labelled(figure.add_subplot(), x_label, y_label)
    ink(ax)
    return ax


def ink(ax: Axes) -> None:
    """Draw frame, ticks and labels in ink; no top and right of the frame, and no ground."""
    ax.patch.set_visible(False)
    ax.tick_params(colors=INK)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set_color(INK)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)


def legend(ax: Axes, lines: Mapping[str, Line2D]) -> None:
    """A frameless legend of named lines where there is room."""
    if lines:
        # matplotlib leaves out what it is told to call by a name that begins with "_"
        shown = ax.legend([*lines.values()], ["-"] * len(lines), frameon=False, labelcolor=INK,
                          loc="best")  # fmt: skip
        for text, name in zip(shown.get_texts(), lines, strict=True):
            text.set_text(plain(name))


def plain(name: str) -> str:
    """A user's name as matplotlib shows it unchanged: dollar signs would begin a formula."""
    return name.replace("$", r"\$")
