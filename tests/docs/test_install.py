"""What docs/install.md names exists: extras, commands, options, messages."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from fp4lab import cli
from fp4lab.models import PRESETS

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "install.md").read_text("utf-8")
#: what pip, Python and the system say
OF_OTHERS = ("project.license", "No module named", "No space left on device")


def table(section: str) -> list[list[str]]:
    """The rows of the table of a section, below its head."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return lines[2:]


def test_every_extra_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [name.strip("`") for name, _ in table("Extras")]
    assert sorted(listed) == sorted(project["optional-dependencies"])


def test_every_message_is_one() -> None:
    sources = "".join(
        (Path(folder) / name).read_text("utf-8")
        for folder, _, names in os.walk(ROOT / "fp4lab", followlinks=True)
        for name in names
        if name.endswith(".py")
    )
    # the names of packages are filled in
    sources = sources.replace("'{__name__!r}'", "").replace("{__name__!r} is", "is")
    quoted = [found[1] for row in table("When something is wrong") if (found := said(row[0]))]
    assert len(quoted) >= 9
    for message in quoted:
        assert message in sources or message in OF_OTHERS, message


def said(cell: str) -> re.Match[str] | None:
    return re.match(r"`([a-z. A-Z0-9;]+)`(?:$|,| scipy)", cell)


def test_commands_and_their_options_exist(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    commands = re.sub(r"\\\n\s*", " ", "\n".join(re.findall(r"```\w*\n(.*?)```", TEXT, re.DOTALL)))
    used = re.findall(r"(?:^|-m )fp4lab (\w+)(.*)$", commands, re.MULTILINE)
    assert {name for name, _ in used} == {"doctor", "train"}
    for name, arguments in used:
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        text = capsys.readouterr().out
        for option in re.findall(r"--[\w.-]+", arguments):
            assert f"{option} " in text, option
    assert re.findall(r"preset (\S+)", commands)[0] in PRESETS


def test_no_host_of_packages_is_named() -> None:
    """Which registry pip asks is the reader's affair."""
    hosts = set(re.findall(r"\b[\w-]+\.(?:org|com|io)\b", TEXT))
    assert hosts <= {"pytorch.org"}
