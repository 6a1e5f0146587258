"""When the set-up of `.venv` does nothing, installs over it, or makes it anew."""

from __future__ import annotations

import shutil
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(checkout: Path, monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> ModuleType:
    """The tool of a checkout, with a `build` that leaves what the real one leaves, and no more."""
    spec = spec_from_file_location("venv_tool", checkout / "tools" / "venv.py")
    assert spec is not None
    assert spec.loader is not None
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)

    def build(*, anew: bool) -> None:
        calls.append("anew" if anew else "over")
        tool.PYTHON.parent.mkdir(parents=True, exist_ok=True)
        tool.PYTHON.unlink(missing_ok=True)
        tool.PYTHON.symlink_to(sys.executable)
        tool.STAMP.write_text("\n".join(tool.expected_stamp()) + "\n")

    monkeypatch.setattr(tool, "build", build)
    return tool


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkout"
    (folder / "tools").mkdir(parents=True)
    for name in ("tools/venv.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_second_call_does_nothing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    tool = load(checkout, monkeypatch, calls)
    assert tool.main() == tool.main() == 0
    assert calls == ["anew"]


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_installed_over_it(
    name: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    tool = load(checkout, monkeypatch, calls)
    tool.main()
    with open(checkout / name, "a") as file:
        file.write("# changed\n")
    tool.main()
    assert calls == ["anew", "over"]


def test_moved_checkout_is_made_anew(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    load(checkout, monkeypatch, calls).main()
    moved = checkout.rename(checkout.parent / "elsewhere")
    load(moved, monkeypatch, calls).main()
    assert calls == ["anew", "anew"]


@pytest.mark.parametrize("lost", ["stamp", "bin/python"])
def test_unfinished_or_broken_one_is_made_anew(
    lost: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    tool = load(checkout, monkeypatch, calls)
    tool.main()
    (checkout / ".venv" / lost).unlink()
    tool.main()
    assert calls == ["anew", "anew"]


def test_left_over_lock_does_not_block(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / ".venv.lock").write_text("left by a killed process")
    calls: list[str] = []
    assert load(checkout, monkeypatch, calls).main() == 0
    assert calls == ["anew"]


def test_old_python_is_refused_in_one_line(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    tool = load(checkout, monkeypatch, calls)
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    assert tool.main() == 1
    assert calls == []
    assert capsys.readouterr().err.splitlines() == [
        "Python 3.10 is too old for fp4lab; name a newer one: make PYTHON=python3.11"
    ]
