"""Figures show what they are given, and nothing global is touched."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fp4lab.instruments.error_rows import LayerErrors, OperandError
from fp4lab.report import read_findings, style
from fp4lab.report.curves import Curve, Series
from fp4lab.report.error_map import share_map, sqnr_map
from fp4lab.report.figures import gap_bars, loss_curves, relative_curves
from fp4lab.report.summary import Summary
from fp4lab.report.svg import inline_svg


def lines(ax: Axes, colour: str) -> list[np.ndarray]:
    """The y values of the lines (not the dots) in a colour."""
    found = [line for line in ax.get_lines() if line.get_color() == colour]
    return [np.asarray(line.get_ydata()) for line in found if line.get_marker() in ("None", "")]


def test_loss_curves_have_a_line_a_run(comparison_folder: Path) -> None:
    found = read_findings(comparison_folder)
    (ax,) = loss_curves(found.curves, "bf16").axes
    colours = style.colours(found.summary.order, "bf16")
    assert {name: len(lines(ax, colours[name])) for name in found.curves} == {
        "bf16": 2, "nvfp4": 2, "mxfp4": 2, "broken": 1,
    }  # fmt: skip
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["bf16", "nvfp4", "mxfp4", "broken"]
    assert lines(ax, colours["nvfp4"])[0][-1] == pytest.approx(1.7, abs=0.1)


def test_relative_curves_end_at_the_gap(comparison_folder: Path) -> None:
    found = read_findings(comparison_folder)
    (ax,) = relative_curves(found.curves, "bf16").axes
    colours = style.colours(found.summary.order, "bf16")
    (curve,) = lines(ax, colours["nvfp4"])
    # 0.1 of 1.6 nats; the noise of a mean of 5 points of 2 pairs is 0.02 sqrt(2 / 10) of 1.6
    assert curve[-1] == pytest.approx(100 * 0.1 / 1.6, abs=6 * 100 * 0.02 / 1.6 * 0.2**0.5)
    low, high = ax.get_ylim()
    assert low < 0 < curve[-1] < high


def test_gap_bars_are_the_gaps(summary: Summary) -> None:
    (ax,) = gap_bars(summary).axes
    assert [patch.get_width() for patch in ax.patches] == [0.1, 0.15]  # type: ignore[attr-defined]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["nvfp4", "mxfp4"]


def test_labels_of_bars_meet_neither_bar_nor_grid(summary: Summary) -> None:
    figure = gap_bars(summary)
    FigureCanvasAgg(figure).draw()
    (ax,) = figure.axes
    assert [text.get_text() for text in ax.texts] == ["+0.1000 (+6.25 %)", "+0.1500 (+9.38 %)"]
    for text in ax.texts:
        box = text.get_window_extent()
        assert box.x0 > ax.get_window_extent().x1
        assert box.x1 <= figure.bbox.x1
    assert not any(line.get_visible() for line in ax.get_ygridlines())


def test_a_recipe_keeps_place_and_colour_when_one_is_added(summary: Summary) -> None:
    """By the order given, not by the loss."""
    added = dataclasses.replace(summary.recipes["nvfp4"], gap=0.01, interval=None)
    more = dataclasses.replace(
        summary,
        recipes=summary.recipes | {"best": added},
        order=("bf16", "best", *summary.order[1:]),
    )
    shown = [
        [(label.get_text(), patch.get_facecolor())
         for label, patch in zip(ax.get_yticklabels(), ax.patches, strict=True)]
        for ax in (gap_bars(summary).axes[0], gap_bars(more).axes[0])
    ]  # fmt: skip
    assert shown[1][:2] == shown[0]
    assert [name for name, _ in shown[1]] == ["nvfp4", "mxfp4", "best"]


def test_a_diverged_bar_does_not_flatten_the_others(summary: Summary) -> None:
    wild = dataclasses.replace(
        summary.recipes["nvfp4"], gap=9.0, interval=(1.0, 17.0), diverged=(0,)
    )
    more = dataclasses.replace(
        summary, recipes=summary.recipes | {"wild": wild}, order=(*summary.order, "wild")
    )
    (ax,) = gap_bars(more).axes
    assert ax.get_xlim()[1] < 0.2
    assert ax.texts[-1].get_text().endswith("diverged")


def curve(gap: float, *, wild: bool = False) -> Curve:
    steps = np.arange(1.0, 401.0)
    losses = 1.6 + gap + 3 * np.exp(-steps / 40)
    losses[200:] += 50.0 if wild else 0.0
    return Curve(Series(steps, losses), Series(steps[99::100], losses[99::100]))


def test_a_diverged_recipe_does_not_flatten_the_others() -> None:
    curves = {
        "bf16": {0: curve(0.0), 1: curve(0.01)},
        "nvfp4": {0: curve(0.1), 1: curve(0.1)},
        "wild": {0: curve(0.1, wild=True), 1: curve(0.1)},
    }
    (loss,) = loss_curves(curves, "bf16", ["wild"]).axes
    (relative,) = relative_curves(curves, "bf16", ["wild"]).axes
    # after the first twentieth: at most 1.71 + 3 exp(-1/2) nats, and 100 x 0.1 / 1.6 percent
    assert loss.get_ylim()[1] < 1.1 * (1.71 + 3 * np.exp(-0.5))
    assert relative.get_ylim()[1] < 1.1 * 100 * 0.1 / 1.6
    for ax in (loss, relative):
        assert ax.get_title(loc="left") == "leaves the picture: wild"
    (calm,) = loss_curves({name: curves[name] for name in ("bf16", "nvfp4")}, "bf16").axes
    assert calm.get_title(loc="left") == ""


def test_where_every_recipe_diverged_all_are_shown() -> None:
    curves = {name: {0: curve(0.1, wild=True)} for name in ("bf16", "wild")}
    for figure in (
        loss_curves(curves, "bf16", ["bf16", "wild"]),
        relative_curves(curves, "bf16", ["bf16", "wild"]),
    ):
        assert np.isfinite(figure.axes[0].get_ylim()).all()


def test_the_bar_says_that_values_beyond_share_its_last_colour() -> None:
    figure = sqnr_map({"nvfp4": many_layers(5, 55.0)})
    assert [label.get_text() for label in figure.axes[-1].get_yticklabels()][-1] == "≥ 13"
    labels = [
        t.get_text() for t in sqnr_map({"x": many_layers(5, 14.0)}).axes[-1].get_yticklabels()
    ]
    assert not any("≥" in label for label in labels)


def test_labels_stay_readable_with_many_recipes_and_blocks() -> None:
    """As wide as drawn, no text is below 9 pixels of CSS."""
    figure = sqnr_map({f"recipe{i}": many_layers(33, 20.0) for i in range(5)})
    scale = 96 / 72
    panels = [ax for ax in figure.axes if ax.get_title()]
    assert len(panels) == 5
    labels = panels[0].get_yticklabels()
    assert [label.get_text() for label in labels] == [f"layer{i}" for i in range(33)]
    assert min(t.get_fontsize() for t in [*labels, *panels[0].texts]) * scale >= 9
    FigureCanvasAgg(figure).draw()
    boxes = [label.get_window_extent() for label in labels]
    assert not any(a.overlaps(b) for a, b in pairwise(boxes))


def test_maps_show_the_rows(comparison_folder: Path) -> None:
    errors = read_findings(comparison_folder).errors
    sqnr = sqnr_map({name: errors[name] for name in ("nvfp4", "mxfp4")})
    table = np.asarray(sqnr.axes[0].collections[0].get_array())
    assert table.shape == (2, 9)
    assert table[0].tolist() == [20, 20, 18] * 3
    assert table[1].tolist() == [20, 20, 17] * 3
    underflow = np.asarray(share_map(errors, "underflow").axes[0].collections[0].get_array())
    assert underflow.shape == (2, 6)
    assert np.allclose(underflow, 7.0)
    # exact everywhere: no number to colour
    assert len(sqnr_map({"bf16": errors["bf16"]}).axes[0].texts) == 0


def many_layers(count: int, best: float) -> LayerErrors:
    """Layers of 10, 11, ... dB, and one of `best`."""
    levels = [*(10.0 + index for index in range(count - 1)), best]
    return LayerErrors(
        tuple(
            OperandError(f"layer{i}", "fprop", "X", "nvfp4", 0.1, 0.0, level, 0.1, 1.0, 1.0)
            for i, level in enumerate(levels)
        ),
        (),
    )


def test_one_layer_in_high_precision_leaves_colours_for_the_others() -> None:
    mesh = sqnr_map({"nvfp4": many_layers(5, 55.0)}).axes[0].collections[0]
    assert mesh.get_clim() == (10.0, 13.0)
    low, high = sqnr_map({"fp8": many_layers(1, 55.0)}).axes[0].collections[0].get_clim()
    assert low is not None
    assert high is not None
    assert low < 55 < high


def test_names_that_matplotlib_would_read_otherwise_are_shown_as_they_are(
    summary: Summary,
) -> None:
    """Dollar signs begin formulas, and an underscore hides from a legend."""
    names = ["_mine", r"a$\frac$b"]
    curves = {name: {0: curve(0.1 * index)} for index, name in enumerate(names)}
    gaps = dataclasses.replace(
        summary,
        baseline=names[0],
        order=tuple(names),
        recipes={names[0]: summary.recipes["bf16"], names[1]: summary.recipes["nvfp4"]},
    )
    errors = {name: layer_named("$x^$") for name in names}
    figures = [loss_curves(curves, names[0]), relative_curves(curves, names[0]), gap_bars(gaps),
               sqnr_map(errors)]  # fmt: skip
    pages = [inline_svg(figure, "f", title="t", alt="a") for figure in figures]
    assert all(r"a$\frac$b" in page for page in pages)
    assert all("_mine" in page for page in pages)
    assert "$x^$" in pages[3]


def layer_named(name: str) -> LayerErrors:
    row = OperandError(name, "fprop", "X", "nvfp4", 0.1, 0.0, 20.0, 0.1, 1.0, 1.0)
    return LayerErrors((row,), ())


def test_deep_models_get_a_label_now_and_then_and_no_numbers() -> None:
    ax = sqnr_map({"nvfp4": many_layers(100, 20.0)}).axes[0]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[:2] == ["layer0", "layer3"]
    assert len(labels) <= 40
    assert len(ax.texts) == 0


def test_recipes_differ_without_colour_too() -> None:
    names = ["a", "b", "c"]
    assert len({str(dash) for dash in style.dashes(names).values()}) == 3


@pytest.mark.slow
def test_no_pyplot(comparison_folder: Path) -> None:
    """In a process of its own, as another test may have imported it."""
    code = (
        "import sys, pathlib; import fp4lab.report as report\n"
        f"report.write(pathlib.Path({str(comparison_folder)!r}))\n"
        "print('matplotlib.pyplot' in sys.modules)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result.stdout == "False\n"
