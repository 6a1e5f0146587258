from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fp4lab import machine
from fp4lab.doctor import hardware
from fp4lab.doctor.findings import Line, State
from fp4lab.kernels.capability import native_formats

Usage = namedtuple("Usage", "total used free")


def processor() -> dict[str, Line]:
    return {line.name: line for line in hardware.processor()}


def test_the_processor_as_it_is() -> None:
    found = processor()
    assert set(found) == {"name", "instructions", "cores", "threads", "memory"}
    assert found["name"].value == machine.cpu_name()
    assert found["threads"].value == "1"
    assert found["memory"].value.endswith(("GiB", "by a control group"))


def test_limits_are_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    monkeypatch.setattr(machine, "core_limit", lambda: 1.5)
    monkeypatch.setattr(machine, "memory", lambda: 64 << 30)
    monkeypatch.setattr(machine, "memory_limit", lambda: 2 << 30)
    monkeypatch.setattr(hardware.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    found = processor()
    assert found["cores"].value == "1.5 of 16, limited by a control group"
    assert found["threads"].state == State.NOTE
    assert found["threads"].cure == "export OMP_NUM_THREADS=1"
    assert found["memory"].value == "64.0 GiB, 2.0 by a control group"


@pytest.mark.parametrize(
    ("capability", "formats"),
    [
        ((8, 0), ()),
        ((8, 9), ("fp8",)),
        ((9, 0), ("fp8",)),
        ((10, 0), ("fp8", "mxfp8", "mxfp6", "mxfp4", "nvfp4")),
        ((12, 1), ("fp8", "mxfp8", "mxfp6", "mxfp4", "nvfp4")),
    ],
)
def test_formats_of_a_gpu(capability: tuple[int, int], formats: tuple[str, ...]) -> None:
    assert native_formats(capability) == formats


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    chips = [
        SimpleNamespace(name="old", major=8, minor=0, total_memory=40 << 30),
        SimpleNamespace(name="new", major=12, minor=0, total_memory=32 << 30),
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(chips))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: chips[index])
    old, new = (line.value for line in hardware.gpus())
    assert old == (
        "old, 40 GiB, sm_80; multiplies no 4- or 8-bit formats; fp4lab uses none: emulated"
    )
    assert new.startswith("new, 32 GiB, sm_120; multiplies fp8, ")
    assert new.endswith("fp4lab uses nvfp4 and mxfp4")


def test_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(hardware.Path, "exists", lambda path: False)
    monkeypatch.setattr(hardware.shutil, "which", lambda name: None)
    assert next(hardware.gpus()).state == State.OK
    monkeypatch.setattr(hardware.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert next(hardware.gpus()).cure == hardware.INSTALL_CUDA
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "nvidia-smi" in next(hardware.gpus()).cure


def test_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = {line.name: line for line in hardware.caches()}
    assert found["C operators"].value.startswith(f"{tmp_path / 'new' / 'fp4lab'}, ")
    assert found["C operators"].state == State.OK
    assert list(tmp_path.iterdir()) == []
    # no one can make a file below one, not even root
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/version")
    line = next(hardware.caches())
    assert (line.state, line.cure) == (
        State.NOTE,
        "export XDG_CACHE_HOME=a folder that can be written",
    )
    assert "cannot be written" in line.value


def test_a_disk_that_is_nearly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.shutil, "disk_usage", lambda path: Usage(9, 8, 1))
    assert "free some space" in next(hardware.caches()).cure
