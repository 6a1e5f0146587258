"""The results are what the inputs say, and the rest of both pages stays as it is."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = {
    "recipes": {
        "bf16": {"val_loss": 1.604, "gap": 0.0, "gap_percent": 0.0, "seeds": 1, "interval": None},
        "nvfp4": {
            "val_loss": 1.708,
            "gap": 0.104,
            "gap_percent": 6.48,
            "interval": [0.09, 0.118],
            "seeds": 3,
            "step_time_ratio": 1.5,
        },
    }
}
SPEED = {
    "machine": {
        "gpu": None,
        "cpu": "Some CPU",
        "isa": "AVX2",
        "amx": False,
        "avx512_bf16": False,
        "threads": 1,
        "torch": "2.13.0",
        "date": "2026-01-02",
    },
    "settings": {"clock": "CPU time", "rounds": 5, "size": 4096},
    "rows": [
        {
            "group": group,
            "name": name,
            "seconds": seconds and {"median": seconds, "low": 0.0, "high": 1.0},
            "value": value and {"median": value, "low": 0.0, "high": 9.0},
            "unit": unit,
            "against": against,
            "target": target,
            "met": met,
        }
        for group, name, seconds, value, unit, against, target, met in (
            ("operators", "copy, float32", 0.005, None, "x", "", None, None),
            ("operators", "cast, float32", 0.01, 2.0, "x", "copy", (1.2, "at most"), False),
            (
                "operators",
                "cast, bfloat16",
                0.011,
                1.1,
                "x",
                "float32 time",
                (1.4, "at most"),
                True,
            ),
            ("operators", "cast, new result, float32", 0.03, 6.0, "x", "copy", None, None),
            ("limits", "memory", None, 0.5, "MiB", "beyond the output", (1, "at most"), True),
            ("products", "matvec", None, None, "x", "", (3.5, "at least"), None),
        )
        for target in [target and {"limit": target[0], "sense": target[1]}]
    ],
}
REPORT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="golden" value="one.npz/x/codes"/>
<property name="golden" value="one.npz/x/scale"/></properties></testcase>
<testcase name="b"><properties><property name="golden" value="one.npz/x/codes"/>
</properties></testcase>
<testcase name="c"><properties><property name="golden" value="two.npz/y"/></properties>
<failure message="no"/></testcase>
<testcase name="d"/>
</testsuite></testsuites>"""


@pytest.fixture
def tool() -> ModuleType:
    spec = spec_from_file_location("update_readme", ROOT / "docs" / "update_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, *, speed: bool = True
) -> int:
    paths = [str(folder / name) for name in ("summary.json", "report.xml")]
    paths += ["--speed", str(folder / "bench.json")] if speed else []
    pages = ["--readme", str(folder / "README.md"), "--speed-page", str(folder / "speed.md")]
    monkeypatch.setattr(sys, "argv", ["x", *paths, *pages])
    code: int = tool.main()
    return code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    (tmp_path / "report.xml").write_text(REPORT)
    (tmp_path / "bench.json").write_text(json.dumps(SPEED))
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
    (tmp_path / "speed.md").write_text((ROOT / "docs" / "speed.md").read_text())
    return tmp_path


def test_section_holds_what_was_measured(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    assert run(tool, monkeypatch, folder) == 0
    text = (folder / "README.md").read_text()
    section = text.split(tool.START)[1].split(tool.END)[0]
    assert "| `bf16` | 1.6040 | +0.0000 | +0.00 | - | 1 | - |" in section
    assert "| `nvfp4` | 1.7080 | +0.1040 | +6.48 | +0.0900 to +0.1180 | 3 | 1.50 |" in section
    assert "| one.npz | 2 |\n| all | 2 |" in section
    assert "two.npz" not in section


def test_speeds_are_what_was_measured(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    assert run(tool, monkeypatch, folder) == 0
    section = (folder / "speed.md").read_text().split(tool.SPEED[0])[1].split(tool.SPEED[1])[0]
    assert "Some CPU (AVX2, without bfloat16 instructions), CPU time, 1 thread, torch" in section
    assert "medians of 5 rounds at 4096x4096. 2 of 3 targets met." in section
    assert "| `cast` | 10 ms | **2x copy** | at most 1.2 | 6x copy | 1.1x float32 time |" in section
    assert "| `memory` | - | 0.5 MiB beyond the output | at most 1 |" in section
    assert "`copy`" not in section
    assert "matvec" not in section


def test_without_a_benchmark_the_speeds_stay(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    before = (folder / "speed.md").read_text()
    assert run(tool, monkeypatch, folder, speed=False) == 0
    assert (folder / "speed.md").read_text() == before


def test_a_missing_benchmark_is_one_line(
    tool: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "bench.json").unlink()
    assert run(tool, monkeypatch, folder) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("bench.json does not exist; run make bench, then make readme")


@pytest.mark.parametrize(("page", "marks"), [("README.md", None), ("speed.md", "SPEED")])
def test_rest_of_the_page_stays_and_a_second_run_changes_nothing(
    tool: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    page: str,
    marks: str | None,
) -> None:
    start, end = getattr(tool, marks) if marks else (tool.START, tool.END)
    before = (folder / page).read_text()
    run(tool, monkeypatch, folder)
    once = (folder / page).read_text()
    run(tool, monkeypatch, folder)
    assert (folder / page).read_text() == once != before
    assert once.split(start)[0] == before.split(start)[0]
    assert once.split(end)[1] == before.split(end)[1]
    assert once.count(start) == once.count(end) == 1


def test_missing_input_is_one_line(
    tool: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "summary.json").unlink()
    assert run(tool, monkeypatch, folder) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("summary.json does not exist; run make demo, then make readme")


def test_missing_marker_is_named(tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="results:start"):
        tool.replace_section("no markers", "text")
