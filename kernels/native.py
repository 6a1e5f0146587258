"""The C versions of operators: compiled at first use, loaded with ctypes, and how to do without.

A source is compiled by the system's C compiler for the very CPU it runs on, into a cache folder
under a name that holds the hash of source, flags, compiler and CPU, so an edited source or another
machine on a shared home never meets a stale library. Where there is no compiler, one warning says
so and the plain torch reference computes the same bits, only slower.

`FP4LAB_BACKEND` (`native` or `reference`) or `with backend("reference"):` forces a choice; forcing
`native` where it cannot be had is an error that says why. Left out: compilation when the package is
installed, several instruction sets in one library, threads, other devices.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fp4lab.errors import InputError, unknown

#: -ffp-contract=off and no -ffast-math: every operation rounds as it is written
FLAGS = (
    *("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-std=gnu11", "-shared", "-fPIC"),
)
BACKENDS = ("native", "reference")
_forced: list[str] = []


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Force "native" or "reference" inside a `with` block, for all threads of the process.

    Raises:
        InputError: an unknown name, or "native" where it cannot be had (the reason is given).

    >>> with backend("reference"):
    ...     wants_native()
    False
    """
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    _forced.append(name)
    try:
        yield
    finally:
        _forced.pop()


def wants_native() -> bool:
    """Whether C versions are to be used where they exist."""
    name = _forced[-1] if _forced else os.environ.get("FP4LAB_BACKEND", "")
    if name and name not in BACKENDS:
        raise unknown("FP4LAB_BACKEND", name, BACKENDS)
    return name != "reference"


def library(source: Path) -> ctypes.CDLL | None:
    """The compiled source, or None (with one warning) where it cannot be compiled.

    Raises:
        InputError: "native" is forced and cannot be had.
    """
    loaded, reason = _load(source)
    forced = _forced[-1] if _forced else os.environ.get("FP4LAB_BACKEND", "")
    if loaded is None and forced == "native":
        raise InputError(f"backend='native' cannot be had: {reason}; use 'reference'")
    return loaded


@cache
def _load(source: Path) -> tuple[ctypes.CDLL | None, str]:
    try:
        return ctypes.CDLL(str(_built(source))), ""
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        warnings.warn(
            f"fp4lab computes {source.parent.name!r} without its C version, several times slower "
            f"and with the same results: {reason}",
            stacklevel=2,
        )
        return None, reason


def _built(source: Path) -> Path:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("no C compiler (cc, gcc or $CC) was found")
    text = source.read_bytes()
    key = hashlib.sha256(text + "\0".join((compiler, _cpu(), *FLAGS)).encode()).hexdigest()[:20]
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache_home) / "fp4lab"
    target = folder / f"{source.parent.name}-{key}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / target.name
            command = [*compiler.split(), *FLAGS, "-o", str(made), str(source), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{compiler} failed on {source.name}: {done.stderr[-300:]}")
            made.replace(target)
    return target


def _cpu() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("flags", "Features", "model name", "CPU part")
    return platform.machine() + "".join(sorted({line for line in lines if line.startswith(wanted)}))
