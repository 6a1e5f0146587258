"""Checks that every notebook and its script have the same cells, then runs the notebooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jupytext

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"


def cells(path: Path) -> list[tuple[str, str]]:
    """The kind and source of every cell of a notebook or of a script in the percent format."""
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def problems(folder: Path) -> list[str]:
    """One line for each script or notebook that has no twin or differs from it."""
    lines = []
    names = {path.stem for path in folder.iterdir() if path.suffix in (".py", ".ipynb")}
    for name in sorted(names):
        script, notebook = folder / f"{name}.py", folder / f"{name}.ipynb"
        if missing := [path.name for path in (script, notebook) if not path.exists()]:
            lines.append(f"{missing[0]} is missing; run: jupytext --set-formats ipynb,py:percent")
        elif cells(script) != cells(notebook):
            lines.append(f"{script.name} and its .ipynb differ; run: jupytext --sync {script.name}")
    return lines


def main() -> int:
    """Check and run all notebooks; the exit code of the first thing that failed."""
    if not FOLDER.is_dir():
        print("there is no folder notebooks")
        return 0
    if lines := problems(FOLDER):
        print("\n".join(lines), file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "pytest", "--nbmake", "-n", "2", "--timeout", "600"]
    return subprocess.run([*command, *map(str, FOLDER.glob("*.ipynb"))], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
