"""Types of command-line options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

from tyro.conf import arg

T = TypeVar("T")


def _hint(default: str) -> str:
    return "" if default == "None" else f"(default: {default})"


#: an option that may be left out: its help says in words what happens then, not "(default: None)"
Unset: TypeAlias = Annotated[T | None, arg(help_behavior_hint=_hint)]

#: `--json`, for `specs.figures.put_json`
JsonFile: TypeAlias = Annotated[Path | None, arg(metavar="FILE|-", help_behavior_hint=_hint)]
