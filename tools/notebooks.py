"""Checks that every notebook is its script, run from top to bottom, and runs the notebooks.

A notebook is committed with its outputs, so that it can be read where nothing runs. With `--write`
it is made anew from its script and keeps what the run gave.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import jupytext

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
LARGEST = 1_000_000
CURE = "run: python tools/notebooks.py --write"


def cells(path: Path) -> list[tuple[str, str]]:
    """The kind and source of every cell of a notebook or of a script in the percent format."""
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def was_run(path: Path) -> bool:
    """Whether every code cell was run, one after another: a changed one has lost its number."""
    counts = [
        cell.execution_count for cell in jupytext.read(path).cells if cell.cell_type == "code"
    ]
    return counts == list(range(1, len(counts) + 1))


def problems(folder: Path) -> list[str]:
    """One line for each script or notebook that has no twin, differs from it, or was not run."""
    lines = []
    names = {path.stem for path in folder.iterdir() if path.suffix in (".py", ".ipynb")}
    for name in sorted(names):
        script, notebook = folder / f"{name}.py", folder / f"{name}.ipynb"
        if missing := [path.name for path in (script, notebook) if not path.exists()]:
            lines.append(f"{missing[0]} is missing; run: jupytext --set-formats ipynb,py:percent")
        elif cells(script) != cells(notebook):
            lines.append(f"{script.name} and its .ipynb differ; run: jupytext --sync {script.name}")
        elif not was_run(notebook):
            lines.append(f"{notebook.name} was not run from top to bottom as it is; {CURE}")
        elif (size := notebook.stat().st_size) > LARGEST:
            lines.append(f"{notebook.name} has {size} bytes, over {LARGEST}; draw less in it")
    return lines


def run(notebooks: list[Path], *options: str) -> int:
    """Run notebooks, at most two at a time; the exit code."""
    command = [sys.executable, "-m", "pytest", "--nbmake", "-n", "2", "--timeout", "600", *options]
    return subprocess.run([*command, *map(str, notebooks)], check=False).returncode


def write(folder: Path) -> int:
    """Make the notebooks from their scripts, run them, and keep the outputs; the exit code."""
    notebooks = []
    for script in sorted(folder.glob("*.py")):
        command = [sys.executable, "-m", "jupytext", "--quiet", "--to", "ipynb", "--update"]
        subprocess.run([*command, str(script)], check=True)
        notebooks.append(script.with_suffix(".ipynb"))
    failed = run(notebooks, "--overwrite")
    for path in notebooks:
        notebook = jupytext.read(path)
        for cell in notebook.cells:
            without_chance(cell)
        notebook.metadata.get("language_info", {}).pop("version", None)
        jupytext.write(notebook, path)
    return failed


def without_chance(cell: Any) -> None:
    """Take out what differs from run to run: its times, and into how many pieces a text came."""
    cell.metadata.pop("execution", None)
    if cell.cell_type != "code":
        return
    outputs: list[Any] = []
    for output in cell.outputs:
        last = outputs[-1] if outputs else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            outputs.append(output)
    cell.outputs = outputs


def main(arguments: list[str] | None = None) -> int:
    """Check and run all notebooks; the exit code of the first thing that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="make the notebooks from the scripts")
    if not FOLDER.is_dir():
        print("there is no folder notebooks")
        return 0
    anew = parser.parse_args(arguments).write
    failed = write(FOLDER) if anew else 0
    if lines := problems(FOLDER):
        print("\n".join(lines), file=sys.stderr)
        return failed or 1
    return failed if anew else run(sorted(FOLDER.glob("*.ipynb")))


if __name__ == "__main__":
    sys.exit(main())
