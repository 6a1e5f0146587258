"""Curves as read, smoothed, thinned and set against a baseline."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fp4lab.report.curves import Series, read_curve, relative_difference, running_mean, thin, window


def test_a_line_cut_off_by_a_kill_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    records = [
        {"kind": "train", "step": 1, "loss": 3.0},
        {"kind": "train", "step": 2, "loss": 2.0},
        {"kind": "eval", "step": 2, "loss": 2.5},
        {"kind": "end", "step": 3},
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(text + '{"kind": "train", "ste')
    curve = read_curve(path)
    assert curve.train.steps.tolist() == [1, 2]
    assert curve.train.losses.tolist() == [3.0, 2.0]
    assert curve.evaluation.losses.tolist() == [2.5]
    assert read_curve(tmp_path / "none").train.steps.tolist() == []


@pytest.mark.parametrize("width", [1, 3, 5, 51])
@pytest.mark.parametrize("length", [0, 1, 7, 20])
def test_the_running_mean_is_that_of_whole_windows(length: int, width: int) -> None:
    values = np.random.default_rng(length).normal(2.0, 1.0, size=length)
    half = width // 2
    centres = range(half, length - half)
    steps, means = running_mean(np.arange(1.0, length + 1), values, width)
    assert steps.tolist() == [i + 1 for i in centres]
    expected = [float(np.mean(values[i - half : i + half + 1])) for i in centres]
    # each of the two sums of at most 20 terms below 100 is exact to 20 * 100 * 2^-53
    np.testing.assert_allclose(means, expected, rtol=0, atol=1e-12)


def test_the_running_mean_of_a_line_is_the_line_to_its_ends() -> None:
    """A window cut off at the ends would be off centre: the line would turn there."""
    steps = np.arange(1.0, 2051.0)
    width = window(len(steps))
    assert width == 51
    centres, means = running_mean(steps, 3.0 - steps / 1024, width)
    # exact: the values and their sums are multiples of 2^-10 below 2^12 x 51
    np.testing.assert_allclose(means, 3.0 - centres / 1024, rtol=0, atol=1e-12)


def test_windows_are_odd() -> None:
    assert [window(n) for n in (0, 1, 79, 80, 200, 2050)] == [1, 1, 1, 3, 5, 51]


def test_relative_difference_uses_shared_steps() -> None:
    base = Series(np.array([1.0, 2.0, 3.0, 4.0]), np.array([4.0, 2.0, 2.0, 1.0]))
    short = Series(np.array([2.0, 4.0]), np.array([2.2, 1.2]))
    full = Series(base.steps, base.losses * 1.3)
    steps, percent = relative_difference([short, full], [base, base], 1)
    assert steps.tolist() == [2, 4]
    np.testing.assert_allclose(percent, [20.0, 25.0])
    steps, percent = relative_difference([], [], 1)
    assert (len(steps), len(percent)) == (0, 0)


def test_thin_keeps_the_ends() -> None:
    steps = np.arange(1.0, 2002.0)
    kept, values = thin(steps, steps * 2, 100)
    assert (kept[0], kept[-1]) == (1.0, 2001.0)
    assert len(kept) <= 103
    assert np.array_equal(values, kept * 2)
    assert len(thin(steps[:0], steps[:0])[0]) == 0
