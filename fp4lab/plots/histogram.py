"""The rounding error of a tensor against what theory says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fp4lab.formats import BlockFormat, Rounding
from fp4lab.functional import quantize
from fp4lab.functional.arguments import as_format
from fp4lab.plots import style
from fp4lab.plots.grid import decode_scales, steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: from -1.25 to 1.25 steps, with edges at -1/2 and 1/2
EDGES = np.linspace(-1.25, 1.25, 51)


def error_histogram(
    x: Tensor,
    fmt: BlockFormat | str,
    *,
    rounding: Rounding = Rounding.NEAREST,
    noise: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """How often each rounding error occurs, in steps of the format at the value, and the theory.

    For values spread evenly within each step, the error to nearest is uniform within half a step
    (variance 1/12), the stochastic one is the difference of two uniform numbers, a triangle within
    one step (variance 1/6). Errors of values beyond the largest of their block may lie outside.

    Args:
        x: any shape that `fp4lab.quantize` takes.
        fmt: the format, or its name.
        rounding: as in `quantize`.
        noise: as in `quantize`.
        ax: where to draw; None: a new figure.

    Raises:
        InputError: as `quantize`.

    >>> import torch
    >>> from fp4lab.formats import NVFP4
    >>> error_histogram(torch.randn(64, 64), NVFP4).get_xlabel()
    'error (steps of the format at the value)'
    """
    fmt = as_format(fmt)
    q = quantize(x, fmt, rounding=rounding, noise=noise)
    scales = decode_scales(q).numpy()
    exact = x.detach().double().numpy()
    known = scales > 0
    units = steps(exact[known] / scales[known], fmt.element) * scales[known]
    found = (q.dequantize().double().numpy()[known] - exact[known]) / units
    counts, _ = np.histogram(found, EDGES)
    ax = style.axes(ax, "error (steps of the format at the value)", "density (per step)",
                    size=(5.2, 3.4))  # fmt: skip
    ax.stairs(counts / (len(found) * np.diff(EDGES)), EDGES, color=style.BLUE, fill=True, alpha=0.5,
              label=f"{fmt.name}, {rounding.value}")  # fmt: skip
    if rounding == Rounding.NEAREST:
        theory = np.array([[-0.5, -0.5, 0.5, 0.5], [0.0, 1.0, 1.0, 0.0]])
    else:
        theory = np.array([[-1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    ax.plot(*theory, color=style.ORANGE, linewidth=1.6, label="theory")
    ax.set_ylim(0.0, 1.3)
    ax.legend(frameon=False, labelcolor=style.ink(ax), loc="upper center", ncols=2)
    return ax
