"""The site shows every public name and command, and builds without a warning."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest

import fp4lab
from fp4lab import cli

pytest.importorskip("mkdocs", reason="needs mkdocs, of the extra docs")
pytest.importorskip("mkdocstrings_handlers.python", reason="needs mkdocstrings-python, likewise")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("generated_pages")


def test_every_public_name_is_shown(generated: Any) -> None:
    pages = generated.pages()
    rooms = [importlib.import_module(f"fp4lab.{m.name}") for m in iter_modules(fp4lab.__path__)]
    public = {room.__name__ for room in rooms if hasattr(room, "__all__")} - {"fp4lab.face"}
    assert public == {f"fp4lab.{name}" for name in generated.ROOMS}
    for module in map(importlib.import_module, ["fp4lab", *public]):
        room = module.__name__
        page = pages[f"api/{room.rpartition('.')[2]}.md"]
        for name in module.__all__:
            if not isinstance(getattr(module, name), ModuleType):
                assert f"heading: {name}\n" in page or f"`{name}`" in page, f"{room}.{name}"


def test_what_the_face_shows_is_shown_once(generated: Any) -> None:
    """In the page of its room, with a link there, or on the page itself."""
    pages = generated.pages()
    page = pages["api/fp4lab.md"]
    shown = re.findall(r"^::: (\S+)", "\n".join(pages.values()), re.MULTILINE)
    assert len(shown) == len(set(shown))
    links = re.findall(r"\]\((\S*)#(\S+)\)", page)
    assert len(links) > 20
    for target, path in links:
        assert f"::: {path}\n" in (pages[f"api/{target}"] if target else page)


def test_every_command_is_shown_with_its_options(generated: Any) -> None:
    page = generated.command_line()
    for name in cli.COMMANDS:
        assert f"## fp4lab {name}\n" in page
    assert "--optim.learning-rate" in page
    assert "\x1b" not in page


def test_docstrings_become_markdown(generated: Any) -> None:
    markdown = importlib.import_module("docstring_markdown").markdown
    assert markdown("Sum.\n\nArgs:\n    x: <q, x> as `a<b`.\n\n    >>> f(1)\n    2\n\nEnd.\n") == (
        "Sum.\n\nArgs:\n    x: &lt;q, x> as `a<b`.\n"
        "\n    ```pycon\n    >>> f(1)\n    2\n    ```\n\nEnd.\n"
    )
    two = ">>> 1\n1\n\n>>> for i in ():\n...     i\nDone"
    assert markdown(two) == f"```pycon\n{two}\n```"


def test_links_of_the_root_lead_to_pages_of_the_site(generated: Any) -> None:
    text = "[a](DESIGN.md) [b](docs/log.md) [c](LICENSE) [d](../README.md#results)"
    expected = "[a](design.md) [b](log.md) [c](LICENSE) [d](index.md#results)"
    assert generated.on_page_markdown(text, page=None) == expected


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 20
    # a page fetches nothing from another host
    fetched = re.compile(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"(?:https?:)?//")
    assert [page.name for page in pages if fetched.search(page.read_text("utf-8"))] == []
