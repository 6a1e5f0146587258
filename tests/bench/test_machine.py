from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import fp4lab
from fp4lab.bench import machine
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
    monkeypatch.setattr(Path, "read_text", refuse)
    facts = machine.describe(Setting(size=128))
    assert facts["load_average"] is None
    assert facts["cpu"]
