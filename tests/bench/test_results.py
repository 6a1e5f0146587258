from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from fp4lab.bench.measure import Spread
from fp4lab.bench.results import SCHEMA, Findings, Target
from fp4lab.errors import InputError
from tests.bench.bench_fakes import LINES, findings


def test_targets_have_two_senses() -> None:
    assert Target(2.0).met(2.0)
    assert not Target(2.0).met(2.01)
    assert Target(3.0, "at least").met(3.0)
    assert not Target(3.0, "at least").met(2.99)


def test_a_line_knows_its_verdict_and_its_rates() -> None:
    copy, cast, linear, call, matvec = LINES
    assert [line.met for line in LINES] == [None, False, True, True, None]
    assert replace(cast, judged=False).met is None
    assert (copy.bandwidth, copy.rate) == (5e10, None)
    assert (linear.bandwidth, linear.rate) == (None, 2e11)
    assert (call.bandwidth, matvec.rate) == (None, None)


def test_the_json_has_one_schema_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bench.json"
    findings().save(path)
    plain = json.loads(path.read_text())
    assert set(plain) == {"schema", "machine", "settings", "rows", "missing", "stopped"}
    assert plain["schema"] == SCHEMA
    assert plain["rows"][1] == {
        "group": "operators",
        "name": "cast e4m3, float32",
        "seconds": {"median": 4e-3, "low": 3e-3, "high": 5e-3},
        "value": {"median": 2.0, "low": 1.9, "high": 2.1},
        "unit": "x",
        "against": "copy",
        "target": {"limit": 1.2, "sense": "at most"},
        "judged": True,
        "moved": 10**8,
        "flops": 0,
        "roof": 5e10,
        "note": "",
        "left_out": "",
        "met": False,
    }
    assert Findings.load(path) == findings()
    half = replace(findings(), stopped="gpt step")
    half.save(path)
    assert Findings.load(path) == half


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", '{"schema": 0}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"bench\.json h"):
        Findings.load(path)


def test_numbers_that_json_lacks_come_back(tmp_path: Path) -> None:
    endless = findings(replace(LINES[0], seconds=Spread(math.inf, 0.5, math.inf)))
    endless.save(tmp_path / "bench.json")
    assert Findings.load(tmp_path / "bench.json") == endless
