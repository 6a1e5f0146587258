"""The README's results are what the two inputs say, and the rest of the page stays as it is."""

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


def run(tool: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    paths = [str(folder / name) for name in ("summary.json", "report.xml")]
    monkeypatch.setattr(sys, "argv", ["x", *paths, "--readme", str(folder / "README.md")])
    code: int = tool.main()
    return code


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    (tmp_path / "report.xml").write_text(REPORT)
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text())
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


def test_rest_of_the_page_stays_and_a_second_run_changes_nothing(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    before = (folder / "README.md").read_text()
    run(tool, monkeypatch, folder)
    once = (folder / "README.md").read_text()
    run(tool, monkeypatch, folder)
    assert (folder / "README.md").read_text() == once
    assert once.split(tool.START)[0] == before.split(tool.START)[0]
    assert once.split(tool.END)[1] == before.split(tool.END)[1]


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
