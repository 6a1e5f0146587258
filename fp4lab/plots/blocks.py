"""Quantized matrices: one row with its blocks' levels, and the scales of all blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fp4lab.errors import InputError, expect, whole
from fp4lab.formats import BlockFormat, Hadamard
from fp4lab.functional import quantize
from fp4lab.functional.arguments import as_format
from fp4lab.kernels.hadamard.reference import hadamard as transform
from fp4lab.plots import style
from fp4lab.plots.grid import decode_scales, finite_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: levels are drawn of elements with at most so many bits
WITH_LEVELS = 4


def quantized_row(
    x: Tensor,
    fmt: BlockFormat | str,
    *,
    row: int = 0,
    hadamard: Hadamard | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One row of a matrix before and after it is quantized, with the levels each block offers.

    Hollow circles are x, dots what becomes of it; upright lines are the edges of blocks, and level
    ones (of elements of 4 bits) all the numbers that a block can hold.

    Args:
        x: `[M, K]`, quantized as a whole.
        fmt: the format, or its name.
        row: which row to draw.
        hadamard: a transform of x before; what is drawn is the transformed row.
        ax: where to draw; None: a new figure.

    Raises:
        InputError: x is no matrix, has no such row, or cannot be quantized.

    >>> import torch
    >>> from fp4lab.formats import NVFP4
    >>> ax = quantized_row(torch.tensor([[0.1, 1.4, 2.6, 6.0] * 4]), NVFP4)
    >>> ax.get_lines()[-1].get_ydata()[:4].tolist()
    [0.0, 1.5, 3.0, 6.0]
    """
    _check_matrix(x)
    fmt = as_format(fmt)
    row = whole("row", row, 0, x.shape[0] - 1)
    q = quantize(x, fmt, hadamard=hadamard)
    x = x.detach().float()
    before = (x if hadamard is None else transform(x, hadamard, 1))[row].numpy()
    after, scales = q.dequantize()[row].numpy(), decode_scales(q)[row].numpy()
    columns = np.arange(len(before))
    y_label = "value" if hadamard is None else "value after the transform"
    ax = style.axes(ax, "column", y_label, size=(7.6, 3.4))
    ax.grid(visible=False)
    side = (fmt.block[1] if fmt.block else 0) or len(before)
    for start in range(0, len(before), side):
        end = min(start + side, len(before))
        if start:
            ax.axvline(start - 0.5, color=style.GREY, linewidth=0.9)
        if fmt.element.bits <= WITH_LEVELS:
            levels = finite_values(fmt.element) * scales[start]
            ax.hlines(levels, start - 0.4, end - 0.6, color=style.GREY, alpha=0.35, linewidth=0.7)
    ax.vlines(columns, before, after, color=style.ORANGE, alpha=0.6, linewidth=1.0)
    ax.plot(columns, before, "o", color=style.BLUE, markersize=6, markerfacecolor="none",
            label="before")  # fmt: skip
    ax.plot(columns, after, "o", color=style.ORANGE, markersize=3, label=f"after ({fmt.name})")
    ax.set_xlim(-0.5, len(before) - 0.5)
    style.legend(ax)
    return ax


def block_scales(
    x: Tensor,
    fmt: BlockFormat | str,
    *,
    limits: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """A heat map of the decode scale of every block of a matrix: what one step of it is worth.

    Args:
        x: `[M, K]`.
        fmt: a format, or its name, with block scales.
        limits: the scales at the ends of the colours, so that figures compare; None: those found.
        ax: where to draw; None: a new figure. A colour bar is drawn beside it.

    Returns:
        the axes; cells lie where their blocks do. The colours are logarithmic; a block whose scale
        is 0 or not finite has none.

    Raises:
        InputError: x is no matrix or cannot be quantized, or the format has no block scales.

    >>> import torch
    >>> from fp4lab.formats import NVFP4_16X16
    >>> ax = block_scales(torch.randn(64, 32), NVFP4_16X16)
    >>> ax.collections[0].get_array().shape
    (4, 2)
    """
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator, NullLocator

    _check_matrix(x)
    fmt = as_format(fmt)
    if fmt.block is None:
        raise InputError(f"fmt={fmt.name!r} has no block scales; use one such as formats.NVFP4")
    sides = [side or extent for side, extent in zip(fmt.block, x.shape, strict=True)]
    scales = decode_scales(quantize(x, fmt))[:: sides[0], :: sides[1]].numpy()
    shown = np.ma.masked_where(~(np.isfinite(scales) & (scales > 0)), scales)
    edges = [
        np.minimum(np.arange(0, extent + side, side), extent)
        for side, extent in zip(sides, x.shape, strict=True)
    ]
    ax = style.axes(ax, "column", "row", size=(4.6, 3.8))
    ax.grid(visible=False)
    mesh = ax.pcolormesh(edges[1], edges[0], shown, cmap="viridis", norm=LogNorm(*(limits or ())))
    ax.invert_yaxis()
    ax.set_aspect("equal")
    ax.set_title(fmt.name, color=style.ink(ax), fontsize=11)
    figure = ax.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(mesh, ax=ax, shrink=0.8, ticks=LogLocator(base=2), format="{x:g}")
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.set_label("decode scale (units of x)")
    return ax


def _check_matrix(x: Tensor) -> None:
    expect("x", x, Tensor, "use torch.as_tensor")
    if x.dim() != 2 or x.numel() == 0:
        raise InputError(f"x of shape {tuple(x.shape)} is no matrix with values; reshape it")
