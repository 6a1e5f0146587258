"""A notebook and its script are a pair with the same cells, which were run."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

jupytext = pytest.importorskip("jupytext", reason="the extra 'notebooks' is not installed")
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "# %% [markdown]\n# A title.\n\n# %%\nx = 1\n\n# %%\nprint(x)\n"


def tool() -> ModuleType:
    spec = spec_from_file_location("notebooks_tool", ROOT / "tools" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def problems(folder: Path) -> list[str]:
    found: list[str] = tool().problems(folder)
    return found


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    script = tmp_path / "tour.py"
    script.write_text(SCRIPT)
    write(tmp_path / "tour.ipynb", [1, 2])
    return script


def write(path: Path, counts: list[int | None]) -> None:
    """The notebook of the script, with numbers that say in which order cells were run."""
    notebook = jupytext.reads(SCRIPT, fmt="py:percent")
    for cell, count in zip(notebook.cells[1:], counts, strict=True):
        cell.execution_count = count
    jupytext.write(notebook, path)


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


@pytest.mark.parametrize("counts", [[None, None], [1, None], [2, 1], [3, 4]])
def test_notebook_that_was_not_run_as_it_is_is_named(counts: list[int | None], pair: Path) -> None:
    write(pair.with_suffix(".ipynb"), counts)
    (line,) = problems(pair.parent)
    assert line.startswith("tour.ipynb was not run from top to bottom as it is; run: ")


def test_large_notebook_is_named(pair: Path) -> None:
    notebook = pair.with_suffix(".ipynb")
    notebook.write_text(notebook.read_text() + " " * 1_000_000)
    (line,) = problems(pair.parent)
    assert line.endswith("over 1000000; draw less in it")


def test_the_notebooks_here_are_in_step() -> None:
    assert problems(ROOT / "notebooks") == []


def test_what_differs_from_run_to_run_is_taken_out(pair: Path) -> None:
    cell = jupytext.read(pair.with_suffix(".ipynb")).cells[2]
    cell.metadata["execution"] = {"iopub.status.busy": "2026-12-01T00:00:00Z"}
    pieces = [("stdout", "a"), ("stdout", "b\n"), ("stderr", "c"), ("stdout", "d")]
    new_output = pytest.importorskip("nbformat.v4", reason="part of jupytext").new_output
    cell.outputs = [new_output("stream", name=name, text=text) for name, text in pieces]
    tool().without_chance(cell)
    assert dict(cell.metadata) == {}
    found = [(output.name, output.text) for output in cell.outputs]
    assert found == [("stdout", "ab\n"), ("stderr", "c"), ("stdout", "d")]
