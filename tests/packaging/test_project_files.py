"""The files beside the code agree with it: README, licence, citation, changelog, pins."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fp4lab

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "DESIGN.md"]
PAGES += [f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))]


def test_readme_leads_with_the_two_commands() -> None:
    blocks = re.findall(r"```\w*\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    commands = [line.split("#")[0].strip() for line in blocks[0].splitlines()]
    assert commands == ["make demo", "make test"]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert [
        target for target in targets if not (ROOT / page).parent.joinpath(target).exists()
    ] == []


def test_licence_is_apache_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert (
        "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()
    )
    assert "license: Apache-2.0\n" in (ROOT / "CITATION.cff").read_text()


def test_versions_agree() -> None:
    assert f"version: {fp4lab.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert "## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text()


def test_every_dependency_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [Requirement(line) for lines in [project["dependencies"], *extras] for line in lines]
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, version = line.split("==")
            pins[canonicalize_name(name)] = version
    assert pins["torch"] == "2.13.0"
    for requirement in wanted:
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement
