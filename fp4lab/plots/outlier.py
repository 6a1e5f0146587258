"""What one outlier does to the error of its block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from fp4lab.errors import InputError, whole
from fp4lab.formats import BlockFormat, Hadamard
from fp4lab.functional import compare, quantize
from fp4lab.functional.arguments import as_format
from fp4lab.kernels.hadamard.reference import hadamard as transform
from fp4lab.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: from what is no outlier to one that drowns its block, eight in each doubling
SIZES = tuple(2.0 ** (n / 8) for n in range(49))


def outlier_curve(
    fmt: BlockFormat | str,
    sizes: Sequence[float] = SIZES,
    *,
    hadamard: Hadamard | None = None,
    count: int = 256,
    seed: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Signal to quantization noise against the size of one outlier in each block, in dB.

    Blocks are of normal numbers of deviation 1, of which one is replaced by the outlier; the same
    `count` blocks are one tensor for each size. Call it again with the same `ax` for another curve.

    Args:
        fmt: a format, or its name, whose blocks are 1 x n.
        sizes: of the outlier, in deviations of the others.
        hadamard: a transform of the blocks before they are quantized.
        count: blocks that a point is measured on.
        seed: of the numbers.
        ax: where to draw; None: a new figure.

    Raises:
        InputError: a format without blocks of 1 x n, or a transform that does not fit them.

    >>> from fp4lab.formats import MXFP4
    >>> (curve,) = outlier_curve(MXFP4, [1.0, 64.0]).get_lines()
    >>> curve.get_label(), curve.get_xdata().tolist()
    ('mxfp4', [1.0, 64.0])
    """
    fmt = as_format(fmt)
    if fmt.block is None or fmt.block[0] != 1 or fmt.block[1] < 2:
        raise InputError(
            f"fmt={fmt.name!r} has no blocks of 1 x n; use one such as formats.NVFP4 or MXFP4"
        )
    shape = (whole("count", count, 1, 1 << 20), fmt.block[1])
    normal = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    levels = []
    for size in sizes:
        x = normal.clone()
        x[:, shape[1] // 3] = size
        exact = x if hadamard is None else transform(x, hadamard, 1)
        levels.append(compare(quantize(x, fmt, hadamard=hadamard).dequantize(), exact).sqnr_db)
    ax = style.axes(ax, "outlier (deviations of the other values)", "SQNR (dB)", size=(6.2, 3.8))
    colour, marker = style.next_look(ax)
    label = fmt.name if hadamard is None else f"{fmt.name}, Hadamard {hadamard.size}"
    filling = colour if hadamard is None else "none"
    ax.plot(np.asarray(sizes, dtype=np.float64), levels, color=colour, linewidth=1.3, marker=marker,
            markersize=3.5, markerfacecolor=filling, label=label)  # fmt: skip
    ax.set_xscale("log", base=2)
    style.legend(ax)
    return ax
