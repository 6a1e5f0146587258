from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch

import fp4lab
from fp4lab.doctor import packages
from fp4lab.doctor.findings import State

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
#: extras for those who change fp4lab
FOR_DEVELOPERS = {"test", "dev", "docs"}


def names(lines: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", line)[0] for line in lines}


def test_the_tables_are_those_of_the_project() -> None:
    project = PROJECT["project"]
    assert set(packages.NEEDED) == names(project["dependencies"])
    extras = project["optional-dependencies"]
    for extra in set(extras) - FOR_DEVELOPERS:
        assert names(extras[extra]) <= {*packages.OPTIONAL, *packages.NEEDED}, extra


def test_versions() -> None:
    found = {line.name: line for line in packages.versions()}
    assert list(found) == ["fp4lab", "python", *packages.NEEDED]
    assert found["fp4lab"].value.startswith(f"{fp4lab.__version__} in ")
    assert found["torch"].value.startswith(torch.__version__)
    assert found["numpy"].value == metadata.version("numpy")


def test_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    needed = {line.name: line for line in packages.versions()}
    assert needed["scipy"].state == State.BROKEN
    assert needed["scipy"].cure == "pip install scipy"
    assert needed["torch"].state == State.OK
    extras = list(packages.extras())
    assert {line.state for line in extras} == {State.NOTE}
    assert [line.cure for line in extras] == [f"pip install {name}" for name in packages.OPTIONAL]
