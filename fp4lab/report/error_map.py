"""The heat map of quantization errors: a row a layer, a column an operand or a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fp4lab.instruments.gemm_errors import GEMMS, LayerErrors
from fp4lab.report import style

LABELLED_LAYERS = 40


def error_map(errors: Mapping[str, LayerErrors]) -> Figure:
    """SQNR in dB of the operands and products of every layer, one panel a recipe.

    Darker is worse. Empty cells are exact, or belong to a GEMM that never ran.
    """
    columns = _columns()
    tables = {name: _table(found, columns) for name, found in errors.items()}
    layers = max((len(table) for _, table in tables.values()), default=1)
    figure = Figure(
        figsize=(max(3.3 * len(tables) + 1.6, 5.0), 1.6 + min(0.24 * layers, 14.0)),
        layout="constrained",
    )
    finite = [table[np.isfinite(table)] for _, table in tables.values()]
    values = np.concatenate(finite) if finite else np.zeros(0)
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    grid = figure.subplots(1, max(len(tables), 1), squeeze=False)[0]
    mesh = None
    for ax, (name, (rows, table)) in zip(grid, tables.items(), strict=False):
        mesh = ax.pcolormesh(table, cmap="viridis", vmin=low, vmax=high, edgecolors="none")
        _label(ax, name, rows, [label for _, _, label in columns], first=ax is grid[0])
    if mesh is not None:
        bar = figure.colorbar(mesh, ax=list(grid), shrink=0.8, pad=0.02)
        bar.ax.tick_params(colors=style.INK)
        bar.set_label("SQNR (dB)", color=style.INK)
        bar.outline.set_visible(False)  # type: ignore[operator]
    return figure


def _columns() -> list[tuple[str, str, str]]:
    """(gemm, operand or product, label), grouped by GEMM: the two operands, then the product."""
    return [
        (gemm, part, f"{part}")
        for gemm, (a, b, product) in GEMMS.items()
        for part in (a, b, product)
    ]


def _table(
    found: LayerErrors, columns: Sequence[tuple[str, str, str]]
) -> tuple[list[str], np.ndarray]:
    layers = list(dict.fromkeys(row.layer for row in found.operands))
    sqnr = {(row.layer, row.gemm, row.operand): row.sqnr_db for row in found.operands}
    sqnr |= {(row.layer, row.gemm, row.product): row.sqnr_db for row in found.products}
    cells = [[sqnr.get((layer, gemm, part)) for gemm, part, _ in columns] for layer in layers]
    table = np.array(cells, dtype=np.float64).reshape(len(layers), len(columns))
    return layers, table


def _label(
    ax: Axes, name: str, rows: Sequence[str], columns: Sequence[str], *, first: bool
) -> None:
    style.ink(ax)
    ax.set_title(name, color=style.INK, fontsize=11)
    ax.invert_yaxis()
    ax.set_xticks(np.arange(len(columns)) + 0.5, labels=columns, fontsize=8)
    for edge in range(3, len(columns), 3):
        ax.axvline(edge, color=style.LIGHT, linewidth=2.0)
    stride = 1 + (len(rows) - 1) // LABELLED_LAYERS if rows else 1
    ticks = np.arange(0, len(rows), stride)
    ax.set_yticks(ticks + 0.5, labels=[rows[i] for i in ticks] if first else [], fontsize=8)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=0)
