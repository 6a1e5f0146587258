from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp4lab import cli
from fp4lab.doctor import findings, probe
from fp4lab.doctor.findings import Line, State

GOOD = Line("self-test", "reference", "as recorded")
BAD = Line("self-test", "native-v4", "codes 00, recorded 01", State.BROKEN, "pip install it")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    """The lines of the other process, which a test may add to."""
    lines = [GOOD]

    def given() -> Iterator[Line]:
        return iter(lines)

    monkeypatch.setattr(probe, "lines", given)
    return lines


@pytest.mark.usefixtures("said")
def test_a_usable_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for section in ("versions", "processor", "gpu", "self-test", "caches", "extras"):
        assert f"{section}\n" in out
    assert out.endswith("\nusable\n")
    assert max(map(len, out.splitlines())) < 250
    assert cli.main(["doctor", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["usable"]) == (1, True)
    assert found["sections"]["self-test"]["reference"] == {
        "value": "as recorded",
        "state": "ok",
        "cure": "",
    }


def test_a_broken_one(capsys: pytest.CaptureFixture[str], said: list[Line], tmp_path: Path) -> None:
    said.append(BAD)
    assert cli.main(["doctor"]) == 2
    out = capsys.readouterr().out
    assert "  ! native-v4          codes 00, recorded 01\n" in out
    assert f"{'':<23}pip install it\n" in out
    assert out.endswith("\nbroken: self-test native-v4\n")
    assert cli.main(["doctor", "--json", "-"]) == 2
    assert json.loads(capsys.readouterr().out)["usable"] is False
    assert cli.main(["doctor", "--json", str(tmp_path / "found.json")]) == 2
    assert capsys.readouterr().out == out
    assert json.loads((tmp_path / "found.json").read_text())["usable"] is False


def test_lines_pass_through_json() -> None:
    for line in (GOOD, BAD):
        assert Line.from_json(line.to_json()) == line
    assert findings.broken([GOOD, BAD]) == [BAD]
