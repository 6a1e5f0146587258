"""Config dataclasses as TOML files.

Unlike `fp4lab.specs.plain`, which leaves defaults out, every field is written, so that the folder
of a run keeps its meaning should a default change. None is written as an absent key: fields that
may be None have it as their default.
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from fp4lab.errors import InputError
from fp4lab.specs import toml
from fp4lab.specs.plain import from_plain

T = TypeVar("T")


def dumps(config: Any) -> str:
    """The TOML text of a (nested) config dataclass."""
    return toml.dumps(_table(config))


def loads(text: str, cls: type[T], *, where: str = "config") -> T:
    """The config in a TOML text; keys that are left out take their defaults.

    Raises InputError for broken TOML, an unknown key (with the nearest known one), a value of the
    wrong type, and whatever the dataclass itself refuses. `where` names the text in messages.
    """
    return from_table(parse(text, where=where), cls)


def load(path: Path, cls: type[T]) -> T:
    """The config in a TOML file."""
    return from_table(read(path), cls)


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"config={path} does not exist; give the path of a TOML file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; give a TOML file") from None
    return parse(text, where=str(path))


def parse(text: str, *, where: str) -> dict[str, Any]:
    """The tables of a TOML text."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not valid TOML: {error}; correct that line") from None


def from_table(table: dict[str, Any], cls: type[T]) -> T:
    """The config in the tables of a TOML file."""
    return from_plain(cls, table, path="config")


def _table(config: Any) -> dict[str, Any]:
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return {
        name: _table(value) if dataclasses.is_dataclass(value) else value
        for name, value in values.items()
        if value is not None
    }
