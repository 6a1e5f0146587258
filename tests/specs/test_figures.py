"""Figures as JSON lose nothing, and go where they are sent."""

from __future__ import annotations

import doctest
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from fp4lab.specs import figures
from fp4lab.specs.figures import STDOUT, as_json, put_json


class Pair(NamedTuple):
    low: float
    high: float


@dataclass
class Row:
    name: str
    values: tuple[Pair, ...]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_docstring_examples() -> None:
    assert doctest.testmod(figures).failed == 0


def test_every_number_comes_back() -> None:
    found = json.loads(as_json([Row("a", (Pair(-math.inf, math.inf), Pair(math.nan, 0.1)))]))
    (row,) = found
    assert (row["name"], row["values"][0]) == ("a", {"low": "-inf", "high": "inf"})
    assert [float(row["values"][0][key]) for key in ("low", "high")] == [-math.inf, math.inf]
    assert math.isnan(float(row["values"][1]["low"]))
    assert row["values"][1]["high"] == 0.1


def test_standard_output_links_and_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    put_json(STDOUT, {"a": 1})
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'
    Path("real").touch()
    Path("link").symlink_to("real")
    put_json(Path("link"), 3)
    assert Path("link").is_symlink()
    assert Path("real").read_text() == "3\n"
    put_json(Path("/dev/null"), 3)
    assert Path("/dev/null").is_char_device()
    assert {path.name for path in Path().iterdir()} == {"real", "link"}
