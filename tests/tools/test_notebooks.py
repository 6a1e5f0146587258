"""A notebook and its script are a pair with the same cells."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext", reason="the extra 'notebooks' is not installed")
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "# %% [markdown]\n# A title.\n\n# %%\nx = 1\n\n# %%\nprint(x)\n"


def problems(folder: Path) -> list[str]:
    spec = spec_from_file_location("notebooks_tool", ROOT / "tools" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    found: list[str] = tool.problems(folder)
    return found


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    script = tmp_path / "tour.py"
    script.write_text(SCRIPT)
    jupytext.write(jupytext.read(script), tmp_path / "tour.ipynb")
    return script


def test_pair_in_step_is_accepted(pair: Path) -> None:
    assert problems(pair.parent) == []


def test_changed_cell_is_named(pair: Path) -> None:
    pair.write_text(SCRIPT.replace("x = 1", "x = 2"))
    (line,) = problems(pair.parent)
    assert line.startswith("tour.py and its .ipynb differ")


@pytest.mark.parametrize("name", ["tour.py", "tour.ipynb"])
def test_missing_twin_is_named(name: str, pair: Path) -> None:
    (pair.parent / name).unlink()
    (line,) = problems(pair.parent)
    assert line.startswith(f"{name} is missing")
