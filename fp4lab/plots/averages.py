"""What is left of a random error when many draws are averaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fp4lab.errors import InputError, expect
from fp4lab.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def averaged_error(
    draws: Tensor, exact: Tensor, *, label: str = "draws", ax: Axes | None = None
) -> Axes:
    """Relative error of the mean of the first n draws, and what it is if their bias is zero.

    `|mean_n - exact| / |exact|`, in the Euclidean norm, against n. Without a bias it falls as
    1 / sqrt(n), from the deviation of one draw (the dashed line); it levels out at the bias.

    Args:
        draws: `[D, ...]`, D >= 2 results that differ in their noise only.
        exact: `[...]`, what they stand for; not all zeros.
        label: what the curve is called.
        ax: where to draw; None: a new figure. Call again with it for another curve.

    Raises:
        InputError: one draw, shapes that do not fit, or an `exact` of zeros.

    >>> import torch
    >>> noise = torch.randn(64, 100, generator=torch.Generator().manual_seed(0))
    >>> curve, theory = averaged_error(1 + noise, torch.ones(100)).get_lines()
    >>> curve.get_xdata().tolist()
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    """
    for name, tensor in (("draws", draws), ("exact", exact)):
        expect(name, tensor, Tensor, "use torch.as_tensor")
    if draws.dim() == 0 or draws.shape[1:] != exact.shape or len(draws) < 2:
        raise InputError(
            f"draws of shape {tuple(draws.shape)} with exact of {tuple(exact.shape)}: give two or "
            "more draws of that shape, stacked"
        )
    found = draws.detach().double().reshape(len(draws), -1).numpy()
    truth = exact.detach().double().flatten().numpy()
    power = float(np.square(truth).sum())
    if power == 0:
        raise InputError("exact is zero everywhere; a relative error needs one that is not")
    numbers = 2.0 ** np.arange(np.log2(len(found)) // 1 + 1)
    means = np.array([found[: int(n)].mean(axis=0) for n in numbers])
    errors = np.sqrt(np.square(means - truth).sum(axis=1) / power)
    deviation = np.sqrt(found.var(axis=0, ddof=1).sum() / power)
    ax = style.axes(ax, "draws averaged", "relative error of the mean", size=(6.2, 3.8))
    colour, marker = style.next_look(ax)
    ax.plot(numbers, errors, color=colour, marker=marker, markersize=5, linewidth=1.3, label=label)
    ax.plot(numbers, deviation / np.sqrt(numbers), color=colour, linewidth=1.0,
            linestyle=(0, (4, 2)), label=f"{label}: without a bias")  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    style.legend(ax)
    return ax
