"""What is printed and drawn, of findings that are made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.image import imread

from fp4lab.bench import roofline, table
from tests.bench.bench_fakes import LINES, MACHINE, findings


def test_everything_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    table.show(findings())
    text = capsys.readouterr().out
    for words in (
        "Some CPU: AVX512, AVX512-BF16",
        "fp4lab 0.1.0 (native: v3 of v2, v3, v4), torch 2.13.0",
        "CPU time, threads 1 of 2 cores, load average 0.5; 4096x4096, median and quartiles of 5",
        "2 of 3 targets met",
        "left out: matvec: not there",
        "not compared: torchao: not installed; pip install torchao",
    ):
        assert words in text
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if "│" in line}
    assert "2.00x copy" in rows["cast e4m3, float32"]
    assert "missed" in rows["cast e4m3, float32"]
    assert "500 ms │ 400 to 600" in rows["linear forward"]
    assert "200 GFLOP/s" in rows["linear forward"]
    assert "20 us" in rows["call of fake-quantize"]
    assert "matvec" not in rows


def test_why_c_did_not_compute_and_where_it_ended_are_told() -> None:
    other = {"backend": "torch", "instruction_set": None, "backend_reason": "no compiler"}
    assert table.backend({**MACHINE, **other}) == "torch: no compiler"
    assert table.backend({**MACHINE, **other, "backend_reason": ""}) == "torch"
    assert table.footer(replace(findings(), stopped="gpt step"))[-1] == "interrupted at 'gpt step'"


def test_columns_without_content_are_left_out() -> None:
    assert [str(c.header) for c in table.table(findings(LINES[0]), "operators").columns] == [
        *("row", "median", "quartiles", "rate")
    ]


def test_a_size_without_targets_is_told() -> None:
    told = table.footer(findings(replace(LINES[1], judged=False)))
    assert told[0] == "targets are stated for 4096x4096 and one thread, and not judged otherwise"


def test_the_figure_is_written(tmp_path: Path) -> None:
    path = roofline.save(findings(), tmp_path / "new")
    assert path == tmp_path / "new" / "roofline.png"
    pixels = imread(path)
    assert pixels.shape[0] > 100
    assert pixels.std() > 0


def test_the_figure_shows_the_rates_and_the_roofs() -> None:
    figure = roofline.roofline(findings())
    assert figure is not None
    moving, multiplying = figure.axes
    assert [bar.get_width() for bar in moving.patches] == [25.0]
    assert [bar.get_width() for bar in multiplying.patches] == [200.0]
    (stroke,) = moving.collections[0].get_segments()
    assert stroke[:, 0].tolist() == [50.0, 50.0]


def test_without_anything_to_draw_there_is_no_figure(tmp_path: Path) -> None:
    assert roofline.save(findings(LINES[0]), tmp_path) is None
    assert list(tmp_path.iterdir()) == []
