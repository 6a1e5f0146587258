"""Rounding as a staircase: output against input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from fp4lab.errors import InputError, expect, whole
from fp4lab.formats import BlockFormat, ElementType, Overflow, Rounding, Ties
from fp4lab.functional import cast, fake_quantize, noise_state
from fp4lab.plots import style
from fp4lab.plots.grid import Values, midpoints, stochastic_theory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: more ties than this are not marked
MARKED = 40
POINTS = 241


def staircase(
    element: ElementType,
    *,
    ties: Ties = Ties.EVEN,
    overflow: Overflow = Overflow.SATURATE,
    limit: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What rounding to nearest makes of every number up to a limit: `fp4lab.cast`, drawn.

    Args:
        element: a type of at most 8 bits.
        ties: where numbers halfway between two others go; few enough are marked, filled where they
            go and hollow where they do not.
        overflow: what becomes of numbers beyond the largest; infinity and NaN leave a gap.
        limit: the largest input; None: 1.25 times the largest number.
        ax: where to draw; None: a new figure.

    Raises:
        InputError: a type of more than 8 bits or for scales only, or a limit that is not positive.

    >>> from fp4lab.formats import E2M1
    >>> stairs = staircase(E2M1).get_lines()[1]
    >>> float(stairs.get_ydata().max())
    6.0
    """
    expect("element", element, ElementType, "use one of fp4lab.formats, such as E2M1")
    most = _limit(element, limit)
    jumps = midpoints(element)
    jumps = jumps[np.abs(jumps) <= most]
    # both sides of every jump, so that risers are upright
    beside = np.nextafter(
        jumps.astype(np.float32), np.array([[-np.inf], [np.inf]], dtype=np.float32)
    )
    inputs = np.concatenate([np.linspace(-most, most, POINTS), jumps, beside.ravel()])
    x = np.unique(inputs.astype(np.float32))
    y = cast(torch.from_numpy(x), element, ties=ties, overflow=overflow)
    ax = _axes(ax, element, most)
    ax.plot(x, y.numpy(), color=style.BLUE, linewidth=1.6, label="to nearest")
    if len(jumps) <= MARKED:
        taken = cast(torch.from_numpy(jumps), element, ties=ties).numpy()
        ax.plot(jumps, taken, "o", color=style.ORANGE, markersize=4.5, label="ties")
        ax.plot(jumps, 2 * jumps - taken, "o", color=style.ORANGE, markersize=4.5,
                markerfacecolor="none")  # fmt: skip
    style.legend(ax)
    return ax


def stochastic_staircase(
    element: ElementType,
    *,
    rounding: Rounding = Rounding.STOCHASTIC_8,
    draws: int = 256,
    seed: int = 0,
    limit: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What stochastic rounding makes of numbers up to a limit, drawn many times, and the theory.

    Dots are the mean of the draws, bars one standard deviation of a draw to each side; the band is
    what the definition of the rounding gives for both.

    Args:
        element: a type of at most 8 bits.
        rounding: one of the stochastic ones.
        draws: how often each number is rounded.
        seed: of the noise.
        limit: the largest input; None: 1.25 times the largest number.
        ax: where to draw; None: a new figure.

    Raises:
        InputError: a type for scales only, rounding to nearest, fewer than 2 draws, or a limit that
            is not positive.

    >>> from fp4lab.formats import E2M1
    >>> stochastic_staircase(E2M1, draws=64).get_ylabel()
    'output'
    """
    expect("element", element, ElementType, "use one of fp4lab.formats, such as E2M1")
    if rounding == Rounding.NEAREST:
        raise InputError("rounding='nearest' has no spread; use STOCHASTIC_8, or staircase()")
    most = _limit(element, limit)
    x = np.linspace(-most, most, POINTS).astype(np.float32)
    fmt = BlockFormat(name=element.name, element=element)
    rows = torch.from_numpy(x).expand(whole("draws", draws, 2, 1 << 24), -1)
    drawn = fake_quantize(rows, fmt, rounding=rounding, noise=noise_state(seed))
    found = drawn.numpy().astype(np.float64)
    ax = _axes(ax, element, most)
    mean, deviation = stochastic_theory(x.astype(np.float64), element, rounding.noise_bits)
    ax.fill_between(x, mean - deviation, mean + deviation, color=style.BLUE, alpha=0.3,
                    linewidth=0, label="theory: mean and deviation")  # fmt: skip
    ax.errorbar(x[::4], found.mean(axis=0)[::4], yerr=found.std(axis=0)[::4], fmt="o",
                color=style.ORANGE, markersize=2.5, elinewidth=0.8,
                label=f"{draws} draws: mean and deviation")  # fmt: skip
    style.legend(ax)
    return ax


def _limit(element: ElementType, limit: float | None) -> float:
    if limit is not None and not 0 < limit < np.inf:
        raise InputError(f"limit={limit} is not a positive number; give the largest input")
    return 1.25 * element.max_value if limit is None else limit


def _axes(ax: Axes | None, element: ElementType, most: float) -> Axes:
    """Axes with the line on which nothing is rounded."""
    ax = style.axes(ax, "input", "output", size=(5.6, 4.2))
    ends: Values = np.array([-most, most])
    ax.plot(ends, ends, color=style.GREY, linewidth=0.9, linestyle=(0, (4, 2)), label="not rounded")
    ax.set_title(element.name, color=style.ink(ax), fontsize=11)
    return ax
