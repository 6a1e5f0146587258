"""`operators` in a process of its own: a damaged library ends the process that loads it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fp4lab
from fp4lab.doctor import operators
from fp4lab.doctor.findings import Line, State
from fp4lab.doctor.selftest import REINSTALL
from fp4lab.kernels.native import library


def lines() -> Iterator[Line]:
    """What `operators.found` says in a new process, and how that ended if it did not end well.

    What the process says on standard error, such as that C is compiled, is seen at once.
    """
    # the same package, whatever made it importable here
    paths = [str(Path(fp4lab.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "fp4lab.doctor.probe"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    found = [Line.from_json(text) for text in done.stdout.splitlines() if text.startswith("{")]
    # sections together, in the order in which they began
    sections = list(dict.fromkeys(line.section for line in found))
    yield from sorted(found, key=lambda line: sections.index(line.section))
    if done.returncode:
        yield _ended(done.returncode)


def _ended(status: int) -> Line:
    how = f"with status {status}"
    if status < 0:
        how = f"by {signal.Signals(-status).name}"
    cure = f"delete {library.cache_folder()}, then {REINSTALL}; FP4LAB_BACKEND=torch does without"
    return Line("self-test", "C operators", f"their process ended {how}", State.BROKEN, cure)


if __name__ == "__main__":
    for line in operators.found():
        print(line.to_json(), flush=True)
