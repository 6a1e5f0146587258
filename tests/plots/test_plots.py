"""What figures draw is what the package computes; nothing global is touched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fp4lab import InputError, cast, error, formats, plots, quantize
from fp4lab.formats import (
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    MXFP4,
    NVFP4,
    NVFP4_16X16,
    NVFP4_SIGNS,
    BlockFormat,
    ElementType,
    Hadamard,
    Overflow,
    Rounding,
    Ties,
)
from fp4lab.functional import fake_quantize, noise_state

PLAIN = BlockFormat(name="e2m1", element=E2M1)
TRANSFORM = Hadamard(16, NVFP4_SIGNS)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def line(ax: Axes, label: str) -> Line2D:
    (found,) = [each for each in ax.get_lines() if each.get_label() == label]
    return found


def x_of(drawn: Line2D) -> np.ndarray:
    return np.asarray(drawn.get_xdata())


def y_of(drawn: Line2D) -> np.ndarray:
    return np.asarray(drawn.get_ydata())


EVERY: dict[str, Callable[..., Axes]] = {
    "number_line": lambda ax=None: plots.number_line(E2M1, ax=ax),
    "scaled_number_lines": lambda ax=None: plots.scaled_number_lines(NVFP4, ax=ax),
    "staircase": lambda ax=None: plots.staircase(E2M1, ax=ax),
    "stochastic_staircase": lambda ax=None: plots.stochastic_staircase(E2M1, draws=8, ax=ax),
    "error_histogram": lambda ax=None: plots.error_histogram(normal(16, 16), NVFP4, ax=ax),
    "quantized_row": lambda ax=None: plots.quantized_row(normal(16, 32), NVFP4, ax=ax),
    "block_scales": lambda ax=None: plots.block_scales(normal(16, 32), NVFP4, ax=ax),
    "outlier_curve": lambda ax=None: plots.outlier_curve(NVFP4, [1.0, 4.0], count=4, ax=ax),
    "averaged_error": lambda ax=None: plots.averaged_error(normal(4, 8), torch.ones(8), ax=ax),
}


def test_every_figure_is_tested_here() -> None:
    assert set(EVERY) == set(plots.__all__)


@pytest.mark.parametrize("name", EVERY)
def test_axes_are_drawn_on_or_made_and_nothing_global_changes(name: str) -> None:
    before, random = dict(mpl.rcParams), torch.get_rng_state()
    given = Figure().subplots()
    assert EVERY[name](ax=given) is given
    assert plt.get_fignums() == []
    made = EVERY[name]()
    assert plt.get_fignums() == [made.get_figure(root=True).number]
    assert dict(mpl.rcParams) == before
    assert torch.equal(torch.get_rng_state(), random)
    for ax in (given, made):
        assert ax.get_xlabel()
        assert ax.get_ylabel() or name == "number_line"


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("look", ["default", "dark_background"])
def test_text_has_the_colour_of_the_style(name: str, look: str) -> None:
    """Nothing that is written is dark on dark, nor outside of its figure."""
    with plt.style.context(look):
        ax = EVERY[name]()
        figure = ax.get_figure(root=True)
        figure.canvas.draw()
        ink = mpl.colors.to_rgba(mpl.rcParams["text.color"])
        legend = ax.get_legend()
        texts = [*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label, *ax.get_xticklabels(),
                 *ax.get_yticklabels(), *(legend.get_texts() if legend else [])]  # fmt: skip
        drawn = figure.get_tightbbox()
    assert {mpl.colors.to_rgba(text.get_color()) for text in texts} == {ink}
    whole = figure.bbox_inches
    assert min(drawn.x0, drawn.y0) >= -0.01
    assert drawn.x1 <= whole.x1 + 0.01
    assert drawn.y1 <= whole.y1 + 0.01


def test_importing_it_loads_no_matplotlib() -> None:
    code = "import sys, fp4lab.plots; print('matplotlib' in sys.modules)"
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result.stdout == "False\n"


@pytest.mark.parametrize("element", [E2M1, E4M3, E5M2, formats.INT4, formats.UE5M3], ids=str)
def test_number_line_has_every_number(element: ElementType) -> None:
    ax = plots.number_line(E2M1, element)
    ours = [drawn for drawn in ax.get_lines() if (y_of(drawn) == (element != E2M1)).all()]
    shown = np.concatenate([x_of(drawn) for drawn in ours])
    finite = {value for value in element.values() if np.isfinite(value)}
    assert sorted(shown) == sorted(finite)
    assert line(ax, "normal").get_color() != line(ax, "subnormal, zero").get_color()
    assert x_of(line(ax, "subnormal, zero")).tolist() == [-0.5, 0.0, 0.5]


def test_number_line_of_powers_of_two_is_positive() -> None:
    ax = plots.number_line(E8M0, E2M1, log=True)
    assert ax.get_xscale() == "log"
    drawn = [x_of(each) for each in ax.get_lines()]
    assert (np.concatenate(drawn) > 0).all()
    assert max(map(len, drawn)) == 255
    assert [label.get_text() for label in ax.get_yticklabels()] == ["e8m0", "e2m1"]
    assert list(ax.texts) == []


def test_numbers_are_written_where_there_is_room() -> None:
    ax = plots.number_line(E2M1)
    assert sorted(float(text.get_text()) for text in ax.texts) == sorted(set(E2M1.values()))
    assert list(plots.number_line(E4M3).texts) == []


def test_scaled_lines_are_values_times_scales() -> None:
    ax = plots.scaled_number_lines(NVFP4)
    labels = [float(text.get_text()) for text in ax.get_yticklabels()]
    assert labels == [1 + n / 8 for n in range(9)]
    positive = np.array([0.5, 1, 1.5, 2, 3, 4, 6])
    for scale, drawn in zip(labels, ax.get_lines(), strict=True):
        assert np.array_equal(x_of(drawn), positive * scale)
    given = plots.scaled_number_lines(NVFP4, [3.0]).get_lines()
    assert [x_of(drawn).tolist() for drawn in given] == [(3 * positive).tolist()]


@pytest.mark.parametrize("overflow", Overflow)
@pytest.mark.parametrize("ties", Ties)
@pytest.mark.parametrize("element", [E2M1, E5M2], ids=str)
def test_stairs_are_the_cast(element: ElementType, ties: Ties, overflow: Overflow) -> None:
    ax = plots.staircase(element, ties=ties, overflow=overflow)
    stairs = line(ax, "to nearest")
    x = torch.from_numpy(x_of(stairs))
    assert x.dtype == torch.float32
    assert x.abs().max() == 1.25 * element.max_value
    expected = cast(x, element, ties=ties, overflow=overflow).numpy()
    np.testing.assert_array_equal(y_of(stairs), expected)
    assert set(y_of(stairs)[np.isfinite(expected)]) <= set(element.values())


def test_every_number_is_a_stair_and_risers_are_upright() -> None:
    stairs = line(plots.staircase(E2M1), "to nearest")
    assert set(y_of(stairs)) == set(E2M1.values())
    x, y = x_of(stairs), y_of(stairs)
    risers = np.flatnonzero(np.diff(y))
    assert (np.diff(x)[risers] <= np.spacing(np.abs(x[risers]))).all()


@pytest.mark.parametrize(
    ("ties", "expected"),
    [
        (Ties.EVEN, [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]),
        (Ties.AWAY, [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]),
        (Ties.ZERO, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]),
    ],
)
def test_ties_are_marked_where_they_go(ties: Ties, expected: list[float]) -> None:
    ax = plots.staircase(E2M1, ties=ties)
    marked = line(ax, "ties")
    positive = x_of(marked) > 0
    assert x_of(marked)[positive].tolist() == [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    assert y_of(marked)[positive].tolist() == expected
    (hollow,) = [each for each in ax.get_lines() if each.get_markerfacecolor() == "none"]
    lower = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]
    upper = [*lower[1:], 6.0]
    others = [low + high - y for low, high, y in zip(lower, upper, expected, strict=True)]
    assert y_of(hollow)[positive].tolist() == others
    assert not [each for each in plots.staircase(E4M3).get_lines() if each.get_marker() == "o"]


def test_limit_sets_the_range() -> None:
    x = x_of(line(plots.staircase(E4M3, limit=2.0), "to nearest"))
    assert (x.min(), x.max()) == (-2.0, 2.0)


def test_stochastic_dots_are_the_draws_and_the_band_the_theory() -> None:
    draws = 512
    ax = plots.stochastic_staircase(E2M1, draws=draws, seed=3, limit=6.0)
    (dots,) = [each for each in ax.get_lines() if each.get_marker() == "o"]
    x = torch.from_numpy(x_of(dots))
    assert x.dtype == torch.float32
    # the same noise belongs to the same columns
    grid = torch.linspace(-6, 6, 241, dtype=torch.float64).float()
    how = {"rounding": Rounding.STOCHASTIC_8, "noise": noise_state(3)}
    drawn = fake_quantize(grid.expand(draws, -1), PLAIN, **how).double()[:, ::4]
    np.testing.assert_allclose(x, grid[::4], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(y_of(dots), drawn.mean(0), atol=1e-12)
    bars = np.asarray(ax.collections[1].get_segments())  # type: ignore[attr-defined]
    np.testing.assert_allclose(bars[:, 1, 1] - bars[:, 0, 1], 2 * drawn.std(0, correction=0),
                               atol=1e-12)  # fmt: skip
    band = ax.collections[0].get_paths()[0].vertices
    # at 5, halfway from 4 to 6: mean 5, deviation 1
    assert {y for at, y in np.asarray(band).round(6).tolist() if at == 5.0} == {4.0, 6.0}
    assert np.abs(y_of(dots) - x_of(dots)).max() < 5 * 1.0 / draws**0.5 + 2 / 256


@pytest.mark.parametrize("rounding", [Rounding.NEAREST, Rounding.STOCHASTIC_32])
def test_histogram_of_even_values_is_the_theory(rounding: Rounding) -> None:
    x = torch.empty(400, 500, dtype=torch.float64)
    x.uniform_(-6, 6, generator=torch.Generator().manual_seed(0))
    noise = None if rounding == Rounding.NEAREST else noise_state(0)
    ax = plots.error_histogram(x.float(), PLAIN, rounding=rounding, noise=noise)
    density, edges, _ = ax.patches[0].get_data()  # type: ignore[attr-defined]
    middle = (edges[1:] + edges[:-1]) / 2
    inside = (
        (np.abs(middle) < 0.5).astype(float)
        if rounding == Rounding.NEAREST
        else np.maximum(1 - np.abs(middle), 0.0)
    )
    p = inside * np.diff(edges)
    assert p.sum() == pytest.approx(1.0)
    # 50 binomial counts, each within 5 deviations; an error of exactly an edge counts beside it
    bound = 5 * np.sqrt(x.numel() * p * (1 - p)) + 2
    assert (np.abs(density * np.diff(edges) * x.numel() - x.numel() * p) <= bound).all()
    theory = line(ax, "theory")
    assert np.trapezoid(y_of(theory), x_of(theory)) == pytest.approx(1.0)


def test_histogram_of_a_scaled_format_counts_every_value() -> None:
    x = normal(64, 64) * 1e-3
    ax = plots.error_histogram(x, NVFP4)
    density, edges, _ = ax.patches[0].get_data()  # type: ignore[attr-defined]
    inside = np.abs(edges[:-1] + 0.025) < 0.55
    # all but what saturates lie within half a step, and float32's rounding of it
    share = error(x, NVFP4).saturation
    assert (density * np.diff(edges))[inside].sum() >= 1 - share
    assert density[~inside].sum() * 0.05 <= share


@pytest.mark.parametrize("hadamard", [None, TRANSFORM])
def test_row_is_the_tensor_before_and_after(hadamard: Hadamard | None) -> None:
    x = normal(4, 64)
    ax = plots.quantized_row(x, NVFP4, row=2, hadamard=hadamard)
    q = quantize(x, NVFP4, hadamard=hadamard)
    assert y_of(line(ax, "after (nvfp4)")).tolist() == q.dequantize()[2].tolist()
    before = torch.from_numpy(y_of(line(ax, "before")))
    if hadamard is None:
        assert torch.equal(before, x[2])
    else:
        signs = [[(-1) ** (i & j).bit_count() for j in range(16)] for i in range(16)]
        matrix = torch.tensor(signs) * torch.tensor(NVFP4_SIGNS).unsqueeze(1) / 4
        expected = (x[2].view(4, 16) @ matrix).flatten()
        torch.testing.assert_close(before, expected, rtol=1e-5, atol=1e-5)
    edges = [x_of(each)[0] for each in ax.get_lines() if len(set(x_of(each))) == 1]
    assert edges == [15.5, 31.5, 47.5]


def test_levels_of_a_row_are_what_its_blocks_can_hold() -> None:
    x = normal(2, 32)
    ax = plots.quantized_row(x, NVFP4)
    levels = [np.asarray(found.get_segments())[:, 0, 1] for found in ax.collections[:2]]
    after = y_of(line(ax, "after (nvfp4)")).reshape(2, 16)
    for block, (values, own) in enumerate(zip(after, levels, strict=True)):
        assert len(own) == 15, block
        gaps = np.abs(values[:, None] - own).min(axis=1)
        assert (gaps <= 1e-6 * np.abs(own).max()).all()
        assert np.abs(own).max() >= np.abs(values).max() * (1 - 1e-6)
    assert len(plots.quantized_row(x, formats.MXFP8_E4M3).collections) == 1


@pytest.mark.parametrize("fmt", [NVFP4, NVFP4_16X16, MXFP4], ids=lambda fmt: fmt.name)
def test_map_has_a_cell_a_block(fmt: BlockFormat) -> None:
    x = normal(48, 64)
    x[20, 40] = 24.0
    ax = plots.block_scales(x, fmt, limits=(0.1, 8.0))
    (mesh,) = ax.collections
    shown = np.asarray(mesh.get_array())
    rows, columns = fmt.block or (0, 0)
    assert shown.shape == (48 // rows, 64 // columns)
    q = quantize(x, fmt)
    # an amax maps to a number near 6: within E4M3's half step, or a factor of two for E8M0
    largest = q.dequantize().unfold(0, rows, rows).unfold(1, columns, columns).abs().amax((2, 3))
    units = largest.numpy() / shown
    assert set(units.round(5).flatten()) <= {2.0, 3.0, 4.0, 6.0}
    assert np.unravel_index(shown.argmax(), shown.shape) == (20 // rows, 40 // columns)
    assert mesh.get_clim() == (0.1, 8.0)
    corners = mesh.get_coordinates()  # type: ignore[attr-defined]
    assert corners[-1, -1].tolist() == [64.0, 48.0]


def test_formats_are_given_by_name_too() -> None:
    x = normal(16, 32)
    for draw in (plots.quantized_row, plots.block_scales, plots.error_histogram):
        assert shown_by(draw(x, "mxfp4")) == shown_by(draw(x, MXFP4))
    assert shown_by(plots.scaled_number_lines("mxfp4")) == shown_by(
        plots.scaled_number_lines(MXFP4)
    )
    assert shown_by(plots.outlier_curve("mxfp4", [2.0])) == shown_by(
        plots.outlier_curve(MXFP4, [2.0])
    )


def shown_by(ax: Axes) -> list[Any]:
    """The numbers and texts of a figure."""
    lines = [np.asarray(line.get_xydata()).tolist() for line in ax.get_lines()]
    meshes = [np.asarray(mesh.get_array()).tolist() for mesh in ax.collections]
    return [lines, meshes, [text.get_text() for text in ax.texts], ax.get_title()]


def test_map_hides_blocks_of_zeros() -> None:
    x = normal(16, 32)
    x[3, 16:] = 0.0
    shown = np.ma.asarray(plots.block_scales(x, NVFP4).collections[0].get_array())
    assert np.argwhere(np.ma.getmaskarray(shown)).tolist() == [[3, 1]]


@pytest.mark.parametrize("hadamard", [None, Hadamard(16)])
def test_outlier_curve_is_the_error_of_such_blocks(hadamard: Hadamard | None) -> None:
    sizes = [1.0, 5.0, 40.0]
    (curve,) = plots.outlier_curve(NVFP4, sizes, hadamard=hadamard, count=64).get_lines()
    assert x_of(curve).tolist() == sizes
    matrix = torch.eye(16)
    if hadamard is not None:
        matrix = quantize(matrix, formats.BF16, hadamard=hadamard).dequantize()
    for size, level in zip(sizes, y_of(curve), strict=True):
        x = normal(64, 16)
        x[:, 5] = size
        # the product is summed in another order than the transform: a few codes may differ
        assert error(x @ matrix, NVFP4).sqnr_db == pytest.approx(level, abs=0.05)


def test_curves_on_the_same_axes_differ_in_colour_and_marker() -> None:
    ax = Figure().subplots()
    for fmt in (NVFP4, MXFP4):
        plots.outlier_curve(fmt, [1.0, 2.0], count=4, ax=ax)
    first, second = ax.get_lines()
    assert first.get_color() != second.get_color()
    assert first.get_marker() != second.get_marker()


def test_averaged_error_falls_to_the_bias() -> None:
    draws = 3.0 + normal(256, 50)
    ax = plots.averaged_error(draws + 0.5, torch.full((50,), 3.0), label="biased")
    found, theory = line(ax, "biased"), line(ax, "biased: without a bias")
    assert x_of(found).tolist() == [2.0**n for n in range(9)]
    expected = [
        ((draws[: 2**n] + 0.5).double().mean(0) - 3).norm().item() / (3 * 50**0.5) for n in range(9)
    ]
    np.testing.assert_allclose(y_of(found), expected, rtol=1e-9)
    np.testing.assert_allclose(y_of(theory), y_of(theory)[0] / np.sqrt(x_of(theory)), rtol=1e-12)
    # deviation 1 of a mean of 3, estimated from 256 x 50 numbers: within 5 / sqrt(2 x 12800)
    assert y_of(theory)[0] == pytest.approx(1 / 3, rel=0.032)
    assert y_of(found)[-1] > 2 * y_of(theory)[-1]


def test_averaged_error_of_numbers() -> None:
    ax = plots.averaged_error(torch.tensor([1.0, 3.0]), torch.tensor(1.0))
    assert y_of(line(ax, "draws")).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (plots.number_line, "elements is empty"),
        (lambda: plots.number_line(NVFP4), "elements=.* is not a ElementType"),  # type: ignore[arg-type]
        (lambda: plots.number_line(formats.FP16_ELEMENT), "only 8 bits are listed"),
        (lambda: plots.scaled_number_lines(formats.BF16), "no block scales; use number_line"),
        (lambda: plots.staircase(E8M0), "holds scales only"),
        (lambda: plots.staircase(E2M1, limit=0.0), "limit=0.0 is not a positive number"),
        (lambda: plots.stochastic_staircase(E2M1, rounding=Rounding.NEAREST), "has no spread"),
        (lambda: plots.stochastic_staircase(E2M1, draws=1), "draws=1 should be an integer"),
        (lambda: plots.quantized_row(normal(4), NVFP4), "is no matrix"),
        (lambda: plots.quantized_row(normal(4, 16), NVFP4, row=4), "row=4 should be"),
        (lambda: plots.block_scales(normal(4, 16), formats.BF16), "no block scales; use one"),
        (lambda: plots.outlier_curve(NVFP4_16X16), "no blocks of 1 x n"),
        (lambda: plots.error_histogram(normal(4, 15), NVFP4), "not a multiple of the block"),
        (lambda: plots.averaged_error(normal(1, 4), normal(4)), "give two or more draws"),
        (lambda: plots.averaged_error(normal(2, 4), torch.zeros(4)), "exact is zero everywhere"),
    ],
)
def test_mistakes_are_told_in_one_line(call: Callable[[], Axes], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert plt.get_fignums() == []
