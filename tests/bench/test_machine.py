from __future__ import annotations

import os

import pytest

import fp4lab
from fp4lab.bench import machine
from fp4lab.bench.rows import Setting
from fp4lab.errors import InputError


def test_the_backend_in_force_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with fp4lab.backend("reference"):
        assert machine.backend_in_force() == "reference"

    def refuse(*_: object) -> None:
        raise InputError("backend='native' cannot be had: no compiler")

    monkeypatch.setattr(machine.fp4lab, "fake_quantize", refuse)
    assert machine.backend_in_force() == ("reference (backend='native' cannot be had: no compiler)")


def test_what_the_system_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", refuse)
    monkeypatch.setattr(machine.Path, "read_text", refuse)
    facts = machine.describe(Setting(size=128))
    assert facts["load_average"] is None
    assert facts["cpu"]
