"""The pages that are made of something else: the root's files, the command line, the public names.

mkdocs calls the functions whose names begin with `on_` (`hooks` in mkdocs.yml). Nothing is written
into the checkout.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from docstring_markdown import markdown as as_markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

from fp4lab import cli

ROOT = Path(__file__).resolve().parent.parent
#: the root's pages, and what they are called in the site
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "DESIGN.md": "design.md",
    "CONTRIBUTING.md": "contributing.md",
}
#: files that pages link to, as they are
COPIED = ("LICENSE", "CITATION.cff", "notebooks/01_first_steps.ipynb")
#: the rooms whose public names are shown, in the order of the menu
ROOMS = (
    *("formats", "functional", "tensor", "recipes", "nn", "models", "data", "optim"),
    *("instruments", "plots", "train", "studies", "report", "interop", "compat"),
)
COLUMNS = "100"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every page that is generated."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page's text with links as they are in the site; in the checkout they lead to files."""
    return in_site(markdown)


def pages() -> dict[str, str]:
    """The content of every generated page by its path."""
    made = {site: (ROOT / name).read_text("utf-8") for name, site in PAGES.items()}
    made |= {name: (ROOT / name).read_text("utf-8") for name in COPIED}
    made["site.css"] = style_sheet()
    made["command-line.md"] = command_line()
    rooms = {name: importlib.import_module(f"fp4lab.{name}") for name in ROOMS}
    made |= {f"api/{name}.md": room_page(module) for name, module in rooms.items()}
    made["api/fp4lab.md"] = face_page(rooms)
    return made


def in_site(text: str) -> str:
    """A text with its links to the root's pages, and from there into docs/, as in the site."""
    for name, site in PAGES.items():
        text = re.sub(rf"\]\((?:\.\./)?{re.escape(name)}(?=[)#])", f"]({site}", text)
    return text.replace("](docs/", "](")


def style_sheet() -> str:
    """Colours of code by day and by night, and what is too wide for a page: it wraps or scrolls."""
    light = HtmlFormatter(style="default").get_style_defs(".codehilite")
    dark = HtmlFormatter(style="github-dark").get_style_defs("[data-bs-theme=dark] .codehilite")
    code = ".codehilite pre { padding: 0.6em; white-space: pre-wrap; }"
    table = "[role=main] table { display: block; overflow-x: auto; font-size: 0.85em; }"
    return "\n".join([light, dark, code, table, ""])


def command_line() -> str:
    """What `--help` says, of fp4lab and of every command."""
    parts = ["# Command line", _shown(["--help"])]
    for name in cli.COMMANDS:
        parts += [f"## fp4lab {name}", _shown([name, "--help"])]
    return "\n\n".join(parts)


def _shown(words: list[str]) -> str:
    out = io.StringIO()
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS=COLUMNS, NO_COLOR="1")
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            cli.main(words)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    return f"```text\n{text.rstrip()}\n```"


def public(module: ModuleType) -> dict[str, Any]:
    """The public names of a module and what they are, without its rooms."""
    names = module.__all__
    things = {name: getattr(module, name) for name in names}
    return {name: thing for name, thing in things.items() if not inspect.ismodule(thing)}


def room_page(module: ModuleType) -> str:
    """Everything that a room exports: its constants in a table, the rest by its docstrings."""
    things = public(module)
    described = {name: thing for name, thing in things.items() if _has_docstring(thing)}
    constants = {name: thing for name, thing in things.items() if name not in described}
    parts = [f"# {module.__name__}", as_markdown(inspect.getdoc(module) or "")]
    if constants:
        parts += ["## Constants", _constants(constants)]
    parts += [_entry(name, thing) for name, thing in described.items()]
    return "\n\n".join(parts)


def face_page(rooms: Mapping[str, ModuleType]) -> str:
    """What stands directly in `fp4lab`: what rooms export with a link there, the rest in full."""
    import fp4lab

    shown_in = {
        _path(thing): f"{name}.md#{_path(thing)}"
        for name, module in rooms.items()
        for thing in public(module).values()
        if _has_docstring(thing)
    }
    rows, entries = ["| name | what it is |", "| --- | --- |"], []
    for name, thing in public(fp4lab).items():
        path = _path(thing)
        if path not in shown_in:
            entries.append(_entry(name, thing))
        rows.append(f"| [`{name}`]({shown_in.get(path, f'#{path}')}) | {_summary(thing)} |")
    return "\n\n".join(["# fp4lab", "\n".join(rows), *entries])


def _has_docstring(thing: object) -> bool:
    return inspect.isclass(thing) or inspect.isroutine(thing)


def _path(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _summary(thing: object) -> str:
    first = (inspect.getdoc(thing) or "").partition("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")


def _entry(name: str, thing: Any) -> str:
    return f"::: {_path(thing)}\n    options:\n      heading: {name}\n      toc_label: {name}"


def _constants(constants: Mapping[str, object]) -> str:
    rows = ["| name | value |", "| --- | --- |"]
    for name, thing in constants.items():
        text = ", ".join(thing) if isinstance(thing, Mapping) else repr(thing)
        rows.append(f"| `{name}` | `{text}` |")
    return "\n".join(rows)
