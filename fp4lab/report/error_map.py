"""Heat maps of quantization errors: a row a layer, a column an operand or a product of a GEMM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fp4lab.instruments.error_rows import LayerErrors
from fp4lab.recipes.places import GEMMS, PLACES
from fp4lab.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

LABELLED_LAYERS = 40
#: panels beside each other: with more, the page's width makes the labels too small to read
PANELS = 2
#: points; three quarters of the pixels in which the page shows them
LABEL_TEXT, CELL_TEXT = 8, 7
#: better cells share one colour, or a layer in BF16 would leave none to tell the others apart
BEST_SHOWN_DB = 40.0
#: so few that the colour bar is drawn as tiles: an SVG would hold more of them as a PNG image
SHADES = 32
Column = tuple[str, str]
Share = Literal["underflow", "saturation"]
OPERANDS: list[Column] = [(place.gemm, place.label) for place in PLACES]


def sqnr_map(errors: Mapping[str, LayerErrors]) -> Figure:
    """SQNR in dB of the operands and products of every layer, a panel a recipe; dark is worse.

    Empty cells are exact, or belong to a GEMM that never ran.
    """
    parts = [*OPERANDS, *GEMMS.items()]
    columns = [part for gemm in GEMMS for part in parts if part[0] == gemm]
    cells = {
        name: {(row.layer, row.gemm, row.operand): row.sqnr_db for row in found.operands}
        | {(row.layer, row.gemm, row.product): row.sqnr_db for row in found.products}
        for name, found in errors.items()
    }
    return _map(errors, cells, columns, "SQNR (dB)", "viridis", most=BEST_SHOWN_DB)


def share_map(errors: Mapping[str, LayerErrors], share: Share) -> Figure:
    """Percent of an operand's values that became zero, or that the format's range cut off."""
    cells = {
        name: {
            (row.layer, row.gemm, row.operand): 100.0 * float(getattr(row, share))
            for row in found.operands
        }
        for name, found in errors.items()
    }
    return _map(errors, cells, OPERANDS, f"{share} (%)", "viridis_r")


def _map(
    errors: Mapping[str, LayerErrors],
    cells: Mapping[str, Mapping[tuple[str, str, str], float | None]],
    columns: Sequence[Column],
    label: str,
    colours: str,
    *,
    most: float = np.inf,
) -> Figure:
    from matplotlib import colormaps

    layers = {name: _layers(found) for name, found in errors.items()}
    tables = {
        name: np.array(
            [[cells[name].get((layer, *column)) for column in columns] for layer in layers[name]],
            dtype=np.float64,
        ).reshape(len(layers[name]), len(columns))
        for name in errors
    }
    longest = max((len(rows) for rows in layers.values()), default=1)
    across = min(max(len(tables), 1), PANELS)
    rows = -(-max(len(tables), 1) // across)
    width = 0.36 * len(columns) * across
    height = rows * (0.9 + min(0.24 * longest, 14.0)) + 0.4
    figure = style.new_figure(max(width + 2.4, 5.0), height)
    grid = list(figure.subplots(rows, across, squeeze=False).flat)
    low, high = _range(list(tables.values()), most)
    mesh: QuadMesh | None = None
    shades = colormaps[colours].resampled(SHADES)
    for index, (name, table) in enumerate(tables.items()):
        ax = grid[index]
        mesh = ax.pcolormesh(table, cmap=shades, vmin=low, vmax=high, edgecolors="none",
                             clip_on=False)  # fmt: skip
        _label(ax, name, layers[name], columns, first=index % across == 0)
        if len(table) <= LABELLED_LAYERS:
            _numbers(ax, table, mesh)
    for ax in grid[len(tables) :]:
        ax.set_axis_off()
    if mesh is not None:
        beyond = any((table[np.isfinite(table)] > high).any() for table in tables.values())
        _bar(figure, mesh, grid, label, end=(low, high) if beyond else None)
    return figure


def _bar(
    figure: Figure,
    mesh: QuadMesh,
    grid: Sequence[Axes],
    label: str,
    *,
    end: tuple[float, float] | None,
) -> None:
    """The colour bar; with `end` its high end is marked, as values beyond have its colour too."""
    shrink = min(0.8, 4.0 / figure.get_figheight())
    bar = figure.colorbar(mesh, ax=grid, shrink=shrink, pad=0.02,
                          extend="max" if end else "neither")  # fmt: skip
    if end:
        low, high = end
        ticks = [tick for tick in bar.get_ticks() if low <= tick < high - 0.05 * (high - low)]
        bar.set_ticks([*ticks, high], labels=[*(f"{t:g}" for t in ticks), f"≥ {high:.0f}"])
    bar.ax.tick_params(colors=style.INK)
    bar.outline.set_edgecolor(style.INK)
    bar.set_label(label, color=style.INK)


def _layers(found: LayerErrors) -> list[str]:
    return list(dict.fromkeys(row.layer for row in found.operands))


def _range(tables: Sequence[NDArray[np.float64]], most: float) -> tuple[float, float]:
    """The extent of the values up to `most`, or of all if there are none below."""
    values = np.concatenate([table[np.isfinite(table)] for table in tables] or [np.zeros(0)])
    values = values[values <= most] if (values <= most).any() else values
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)


def _label(
    ax: Axes, name: str, layers: Sequence[str], columns: Sequence[Column], *, first: bool
) -> None:
    style.ink(ax)
    ax.set_title(style.plain(name), color=style.INK, fontsize=11)
    ax.invert_yaxis()
    ax.set_xticks(np.arange(len(columns)) + 0.5, labels=[part for _, part in columns])
    for edge in range(1, len(columns)):
        if columns[edge][0] != columns[edge - 1][0]:
            ax.axvline(edge, color=style.GREY, linewidth=1.5)
    ticks = range(0, len(layers), 1 + max(len(layers) - 1, 0) // LABELLED_LAYERS)
    ax.set_yticks(
        [tick + 0.5 for tick in ticks],
        labels=[style.plain(layers[i]) for i in ticks] if first else [""] * len(ticks),
    )
    ax.tick_params(length=0, labelsize=LABEL_TEXT)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)


def _numbers(ax: Axes, table: NDArray[np.float64], mesh: QuadMesh) -> None:
    """Each cell's number, dark on light and light on dark."""
    for (row, column), value in np.ndenumerate(table):
        if np.isfinite(value):
            red, green, blue, _ = mesh.to_rgba(np.array(value))
            ax.text(column + 0.5, row + 0.5, f"{value:.0f}", ha="center", va="center",
                    fontsize=CELL_TEXT, color=style.text_on((red, green, blue)))  # fmt: skip
