"""What is told where there is no compiler, no Triton, a damaged library or a forced backend."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fp4lab
from fp4lab.doctor import operators, probe
from fp4lab.doctor.findings import Line, State, broken
from fp4lab.kernels import backends
from fp4lab.kernels.native import build, library

needs_library = pytest.mark.skipif(
    not library.instruction_sets(), reason="there is no C library here"
)


def by_name(lines: list[Line], section: str = "backends") -> dict[str, Line]:
    return {line.name: line for line in lines if line.section == section}


@needs_library
def test_what_is_here() -> None:
    lines = list(operators.found())
    there = library.instruction_sets()
    assert broken(lines) == []
    backends_ = by_name(lines)
    assert str(library.location()) in backends_["C operators"].value
    assert backends_["C operators"].value.endswith(f"the best of {', '.join(there)}")
    assert backends_["on cpu"].value == f"native, {there[-1]}"
    tested = ["reference", "torch", *(f"native-{name}" for name in there)]
    assert list(by_name(lines, "self-test")) == tested


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no library can be had, for this process's own is loaded already."""
    reason = "no C compiler (cc, gcc or $CC) was found; install a C compiler or set CC"
    monkeypatch.setattr(library, "load", lambda: (None, reason))
    monkeypatch.setattr(library, "instruction_sets", lambda: ())
    monkeypatch.setattr(backends, "instruction_sets", lambda: ())


@pytest.mark.usefixtures("no_library")
def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    lines = list(operators.found())
    assert broken(lines) == []
    found = by_name(lines)
    assert found["C compiler"].cure == operators.INSTALL_COMPILER
    assert found["C operators"].state == State.NOTE
    assert "no C compiler" in found["C operators"].value
    assert found["on cpu"].value == "torch"
    assert list(by_name(lines, "self-test")) == ["reference", "torch"]


def test_a_compiler_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/no/such/compiler")
    line = operators._compiler(needed=True)
    assert (line.state, line.cure) == (State.NOTE, operators.INSTALL_COMPILER)
    assert "/no/such/compiler" in line.value
    assert operators._compiler(needed=False).state == State.OK
    monkeypatch.setenv("CC", "false")
    assert "non-zero exit status" in operators._compiler(needed=True).value


def test_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "has_triton", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert operators._triton().state == State.OK
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert operators._triton().cure == "pip install triton"
    monkeypatch.setattr(backends, "has_triton", lambda: True)
    assert operators._triton().value.endswith("computes on GPUs")


def test_a_damaged_library_of_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    damaged = tmp_path / "libfp4lab.so"
    monkeypatch.setattr(library, "PACKAGED", damaged)
    assert library.packaged() == (None, "")
    damaged.write_bytes(b"not a library")
    lines = by_name(list(operators._library()))
    assert lines["packaged C"].state == State.BROKEN
    assert str(damaged) in lines["packaged C"].value
    assert "pip install" in lines["packaged C"].cure


@needs_library
def test_another_library_in_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "PACKAGED", library.location())
    monkeypatch.setattr(build, "source_hash", lambda: "of edited sources")
    assert "other sources" in library.packaged()[1]
    assert by_name(list(operators._library()))["packaged C"].state == State.NOTE
    other = tmp_path / "other.so"
    empty = tmp_path / "empty.c"
    empty.write_text("int empty;\n")
    subprocess.run([*build.compiler(), "-shared", "-o", other, empty], check=True)
    monkeypatch.setattr(library, "PACKAGED", other)
    assert "fp4lab_sources" in library.packaged()[1]


def test_a_forced_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    with fp4lab.backend("reference"):
        assert operators._in_force(torch.device("cpu")).value == "reference, as FP4LAB_BACKEND says"
    monkeypatch.setattr(backends, "_ASKED", "nativ")
    line = operators._in_force(torch.device("cpu"))
    assert line.state == State.BROKEN
    assert line.cure.startswith("unset FP4LAB_BACKEND")
    assert "did you mean 'native'?" in line.value


@needs_library
def test_the_process_that_a_cut_library_ends_is_told(tmp_path: Path) -> None:
    """A library that was cut short ends its process by a signal; a copy of the package has one."""
    root = Path(fp4lab.__file__).parents[1]
    for name in ("fp4lab", "kernels", "models"):
        ignore = shutil.ignore_patterns("__pycache__", "libfp4lab.so")
        shutil.copytree(root / name, tmp_path / name, symlinks=True, ignore=ignore)
    whole = library.location()
    assert whole is not None
    cut = tmp_path / "kernels" / "native" / "libfp4lab.so"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 8])
    code = "from fp4lab.doctor import probe\nfor line in probe.lines(): print(line.to_json())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [Line.from_json(text) for text in done.stdout.splitlines()]
    assert [line.state for line in by_name(lines, "self-test").values()] == ["ok", "ok", "broken"]
    assert "by SIGBUS" in lines[-1].value or "by SIGSEGV" in lines[-1].value


def test_how_the_process_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "by SIGILL" in probe._ended(-4).value
    assert "with status 1" in probe._ended(1).value
    assert probe._ended(1).state == State.BROKEN


@needs_library
def test_the_lines_of_the_process_stand_in_their_sections() -> None:
    lines = list(probe.lines())
    sections = [line.section for line in lines]
    assert sections == sorted(sections)
    assert set(sections) == {"backends", "self-test"}
    assert broken(lines) == []


def test_unlike_machines_can_share_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = {library._target()}
    monkeypatch.setattr(library.platform, "machine", lambda: "another")
    targets.add(library._target())
    monkeypatch.setenv("CC", "another-compiler")
    targets.add(library._target())
    assert len(targets) == 3
    assert {target.parent for target in targets} == {library.cache_folder()}
