"""Formats on the number line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fp4lab.errors import InputError, expect
from fp4lab.formats import BlockFormat, ElementType
from fp4lab.functional.arguments import as_format
from fp4lab.plots import style
from fp4lab.plots.grid import Values, finite_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: more numbers than this have no room for a text each
LABELLED = 20


def number_line(*elements: ElementType, log: bool = False, ax: Axes | None = None) -> Axes:
    """Every finite number of some element types, one row a type.

    Args:
        elements: types of at most 8 bits.
        log: positive numbers only, on an axis of powers of two.
        ax: where to draw; None: a new figure.

    Returns:
        the axes; each row has a line of the normal numbers and one of the subnormal ones and zero.

    Raises:
        InputError: no type, something else, or one of more than 8 bits.

    >>> from fp4lab.formats import E2M1, E4M3
    >>> [text.get_text() for text in number_line(E2M1, E4M3).get_yticklabels()]
    ['e2m1', 'e4m3']
    """
    if not elements:
        raise InputError("elements is empty; give one of fp4lab.formats, such as E2M1")
    for element in elements:
        expect("elements", element, ElementType, "use one of fp4lab.formats, such as E2M1")
    rows = {element: finite_values(element) for element in elements}
    ax = style.axes(ax, "value", "", size=(7.6, 0.9 + 0.5 * len(rows)))
    for row, (element, values) in enumerate(rows.items()):
        shown = values[values > 0] if log else values
        small = np.abs(shown) < element.min_normal
        below = "subnormal" if log else "subnormal, zero"
        kinds = ((~small, style.BLUE, "normal"), (small, style.ORANGE, below))
        for chosen, colour, label in kinds:
            ax.plot(shown[chosen], np.full(chosen.sum(), row), "|", color=colour, markersize=16,
                    markeredgewidth=1.6, label=None if row else label)  # fmt: skip
        if len(shown) <= LABELLED and not log:
            for value in shown:
                ax.annotate(f"{value:g}", (value, row), (0, 10), textcoords="offset points",
                            ha="center", va="bottom", fontsize=8, color=style.ink(ax))  # fmt: skip
    _rows(ax, [element.name for element in rows], log=log)
    ax.legend(frameon=False, labelcolor=style.ink(ax), loc="lower left",
              bbox_to_anchor=(0.0, 1.0), ncols=2)  # fmt: skip
    return ax


def scaled_number_lines(
    fmt: BlockFormat | str, scales: Sequence[float] | None = None, *, ax: Axes | None = None
) -> Axes:
    """The positive numbers that one block can hold, a row for each block scale it may have.

    Args:
        fmt: a format, or its name, with block scales and elements of at most 8 bits.
        scales: decode scales; None: every value of the scale type from 1 to 2 (float32: 1 and 2).
        ax: where to draw; None: a new figure.

    Returns:
        the axes, one line a scale, on an axis of powers of two. Numbers between the rows are held
        by no block.

    Raises:
        InputError: a format without block scales, or with elements of more than 8 bits.

    >>> from fp4lab.formats import MXFP4
    >>> [line.get_xdata().tolist() for line in scaled_number_lines(MXFP4).get_lines()]
    [[0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]]
    """
    fmt = as_format(fmt)
    if fmt.scale is None:
        raise InputError(f"fmt={fmt.name!r} has no block scales; use number_line(fmt.element)")
    chosen = _octave(fmt.scale) if scales is None else np.asarray(scales, dtype=np.float64)
    values = finite_values(fmt.element)
    values = values[values > 0]
    ax = style.axes(ax, "value that a block can hold", "block scale",
                    size=(7.6, 1.2 + 0.22 * len(chosen)))  # fmt: skip
    for row, scale in enumerate(chosen):
        ax.plot(values * scale, np.full(len(values), row), "|", markersize=10, markeredgewidth=1.6,
                color=(style.BLUE, style.ORANGE)[row % 2])  # fmt: skip
    _rows(ax, [f"{scale:g}" for scale in chosen], log=True)
    return ax


def _octave(scale: ElementType) -> Values:
    values = finite_values(scale) if scale.bits <= 8 else np.array([1.0, 2.0])
    return values[(values >= 1) & (values <= 2)]


def _rows(ax: Axes, names: Sequence[str], *, log: bool) -> None:
    """One named row each, the first on top."""
    ax.set_yticks(range(len(names)), labels=names)
    ax.set_ylim(len(names) - 0.5, -0.7)
    ax.grid(visible=False, axis="y")
    if log:
        ax.set_xscale("log", base=2)
