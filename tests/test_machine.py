from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import fp4lab
from fp4lab import machine
from fp4lab.bench import machine as bench_machine
from fp4lab.bench.rows import Setting
from fp4lab.errors import InputError
from fp4lab.kernels.native import library

CPU = torch.device("cpu")


@pytest.mark.skipif(not library.instruction_sets(), reason="there is no C library here")
def test_the_backend_in_force_is_named_with_its_instruction_set() -> None:
    there = list(library.instruction_sets())
    expected = {"backend": "native", "instruction_sets": there, "backend_reason": ""}
    assert machine.backend_in_force(CPU) == {**expected, "instruction_set": there[-1]}
    with fp4lab.backend(f"native-{there[0]}"):
        assert machine.backend_in_force(CPU) == {**expected, "instruction_set": there[0]}
    with fp4lab.backend("reference"):
        facts = machine.backend_in_force(CPU)
    assert facts == {**expected, "backend": "reference", "instruction_set": None}


def test_why_c_does_not_compute_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.backends, "chosen", lambda device: "torch")
    monkeypatch.setattr(machine.library, "load", lambda: (None, "no compiler"))
    facts = machine.backend_in_force(CPU)
    assert (facts["backend"], facts["backend_reason"]) == ("torch", "no compiler")
    with fp4lab.backend("torch"):
        assert machine.backend_in_force(CPU)["backend_reason"] == ""


def test_a_forced_backend_that_cannot_be_had_is_an_error() -> None:
    with fp4lab.backend("native"), pytest.raises(InputError, match="computes on CPUs"):
        machine.backend_in_force(torch.device("cuda"))


def test_what_the_system_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", refuse)
    monkeypatch.setattr(os, "sysconf", refuse)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(machine.Path, "read_text", refuse)
    facts = bench_machine.describe(Setting(size=128))
    assert facts["load_average"] is None
    assert facts["cpu"]
    assert machine.memory() is None
    assert machine.usable_cores() == os.cpu_count()
    assert (machine.core_limit(), machine.memory_limit()) == (None, None)


def groups(monkeypatch: pytest.MonkeyPatch, folder: Path, membership: str) -> None:
    (folder / "membership").write_text(membership)
    monkeypatch.setattr(machine, "MEMBERSHIP", folder / "membership")
    monkeypatch.setattr(machine, "CGROUPS", folder)


def test_limits_of_control_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Version 2: the tightest of a group and those around it."""
    groups(monkeypatch, tmp_path, "0::/outer/inner\n")
    assert (machine.core_limit(), machine.memory_limit()) == (None, None)
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    (inner / "memory.max").write_text("max\n")
    assert (machine.core_limit(), machine.memory_limit()) == (None, None)
    (tmp_path / "outer" / "cpu.max").write_text("150000 100000\n")
    (inner / "memory.max").write_text("2000\n")
    (tmp_path / "outer" / "memory.max").write_text("1000\n")
    assert (machine.core_limit(), machine.memory_limit()) == (1.5, 1000)


def test_limits_of_control_groups_of_version_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    groups(monkeypatch, tmp_path, "2:memory:/job\n1:cpu:/\n0::/\n")
    for name in ("memory/job", "cpu"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "memory" / "job" / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert (machine.core_limit(), machine.memory_limit()) == (None, None)
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("400000\n")
    (tmp_path / "memory" / "job" / "memory.limit_in_bytes").write_text("4096\n")
    assert (machine.core_limit(), machine.memory_limit()) == (4.0, 4096)
