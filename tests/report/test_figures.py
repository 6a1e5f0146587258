"""Figures show what they are given, and nothing global is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from fp4lab.instruments.error_rows import LayerErrors, OperandError
from fp4lab.report import read_findings, style
from fp4lab.report.error_map import share_map, sqnr_map
from fp4lab.report.figures import gap_bars, loss_curves, relative_curves
from fp4lab.report.summary import Summary


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
    # 0.1 of 1.6 nats; the noise of a mean of 3 to 5 points over 2 runs is 0.02/sqrt(6) of 1.6
    assert curve[-1] == pytest.approx(100 * 0.1 / 1.6, abs=6 * 100 * 0.02 / 1.6 / 6**0.5)
    low, high = ax.get_ylim()
    assert low < 0 < curve[-1] < high


def test_gap_bars_are_the_gaps(summary: Summary) -> None:
    (ax,) = gap_bars(summary).axes
    assert [patch.get_width() for patch in ax.patches] == [0.1, 0.15]  # type: ignore[attr-defined]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["nvfp4", "mxfp4"]


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


def test_deep_models_get_a_label_now_and_then_and_no_numbers() -> None:
    ax = sqnr_map({"nvfp4": many_layers(100, 20.0)}).axes[0]
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[:2] == ["layer0", "layer3"]
    assert len(labels) <= 40
    assert len(ax.texts) == 0


def luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour, WCAG 2.2."""

    def linear(part: str) -> float:
        value = int(part, 16) / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(colour[i : i + 2]) for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", [*style.COLOURS, style.GREY])
def test_lines_are_visible_on_light_and_dark(colour: str) -> None:
    assert contrast(colour, style.LIGHT) >= 3
    assert contrast(colour, style.DARK) >= 3


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
