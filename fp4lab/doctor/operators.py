"""Who can compute: torch and the reference always, C where it can be had, Triton on a GPU."""

from __future__ import annotations

import shutil
import subprocess
import warnings
from collections.abc import Iterator

import torch

from fp4lab import machine
from fp4lab.doctor import packages, selftest
from fp4lab.doctor.findings import Line, State
from fp4lab.errors import InputError, describe
from fp4lab.kernels import backends
from fp4lab.kernels.native import build, library

INSTALL_COMPILER = "apt-get install gcc (or dnf install gcc, xcode-select --install), or set CC"
WITHOUT = "torch computes the same bits, in ten times the time or more"


def found() -> Iterator[Line]:
    """Lines on every backend, those that could end the process last."""
    cpu = torch.device("cpu")
    yield _triton()
    for name in ("reference", "torch"):
        yield selftest.check(name, cpu)
    if torch.cuda.is_available() and backends.has_triton():
        yield selftest.check("triton", torch.device("cuda"))
    with warnings.catch_warnings():
        # that there are no C operators is told here
        warnings.simplefilter("ignore")
        yield from _library()
        for name in library.instruction_sets():
            yield selftest.check(f"native-{name}", cpu)
        yield _in_force(cpu)
        if torch.cuda.is_available():
            yield _in_force(torch.device("cuda"))


def _compiler(*, needed: bool) -> Line:
    try:
        command = build.compiler()
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        if not needed:
            return Line("backends", "C compiler", "none; the library is there")
        return Line("backends", "C compiler", describe(error), State.NOTE, INSTALL_COMPILER)
    first = next(iter(said.stdout.splitlines()), "")
    return Line("backends", "C compiler", f"{shutil.which(command[0]) or command[0]}: {first}")


def _triton() -> Line:
    if not backends.has_triton():
        cure = "pip install triton" if torch.cuda.is_available() else ""
        state = State.NOTE if cure else State.OK
        return Line("backends", "Triton", "missing; only GPUs need it", state, cure)
    where = "computes on GPUs" if torch.cuda.is_available() else "idle, for there is no GPU"
    return Line("backends", "Triton", f"{packages.version('triton')}, {where}")


def _library() -> Iterator[Line]:
    unused = library.packaged()[1]
    if unused:
        state = State.NOTE if unused == library.STALE else State.BROKEN
        yield Line("backends", "packaged C", f"not used: {unused}", state, selftest.REINSTALL)
    where, reason = library.location(), library.load()[1]
    yield _compiler(needed=where is None)
    if where is None:
        yield Line("backends", "C operators", f"none: {reason}; {WITHOUT}", State.NOTE)
        return
    there = library.instruction_sets()
    kind = "built with the package" if where == library.PACKAGED else "compiled at first use"
    value = f"{where}, {kind}; {there[-1]}, the best of {', '.join(there)}"
    yield Line("backends", "C operators", value)


def _in_force(device: torch.device) -> Line:
    name = f"on {device.type}"
    try:
        facts = machine.backend_in_force(device)
    except InputError as error:
        cure = "unset FP4LAB_BACKEND, or name one that is here"
        return Line("backends", name, str(error), State.BROKEN, cure)
    used = facts["instruction_set"]
    forced = ", as FP4LAB_BACKEND says" if backends.forced() else ""
    return Line("backends", name, facts["backend"] + (f", {used}" if used else "") + forced)
