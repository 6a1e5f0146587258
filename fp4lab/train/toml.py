"""Config dataclasses to TOML and back, exactly.

A field that is None is left out of the file, for TOML has no null, and comes back as its default;
so a field whose type allows None must have None as its default or hold a value. Floats are written
by `repr`, which is exact; strings as JSON strings, whose escapes TOML shares. A library for writing
was left out: the values here are scalars in nested tables, which is all that this writes.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar

from fp4lab.errors import InputError, unknown

T = TypeVar("T")


def dumps(config: Any) -> str:
    """The TOML text of a (nested) config dataclass."""
    lines: list[str] = []
    _write(config, "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def loads(text: str, cls: type[T], *, where: str = "config") -> T:
    """The config in a TOML text; `where` names its origin in errors.

    Raises InputError for broken TOML, an unknown key (with the nearest known one), a value of the
    wrong type, and whatever the dataclass itself refuses.
    """
    return from_table(cls, _parse(text, where))


def load(path: Path, cls: type[T]) -> T:
    """The config in a TOML file."""
    return from_table(cls, read(path))


def read(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; give a TOML file") from None
    return _parse(text, str(path))


def from_table(cls: type[T], table: dict[str, Any], *, prefix: str = "") -> T:
    """A dataclass from nested dictionaries; keys that are left out take their defaults."""
    hints = typing.get_type_hints(cls)
    known = [entry.name for entry in dataclasses.fields(cls)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise unknown("config key", prefix + key, [prefix + name for name in known])
        values[key] = _checked(prefix + key, value, hints[key])
    return cls(**values)


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is not valid TOML: {error}; correct that line") from None


def _checked(name: str, value: Any, hint: Any) -> Any:
    """The value if it has the type; an int where a float is wanted becomes one."""
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise InputError(f"{name}={value!r} is not a table; write it as [{name}]")
        return from_table(typing.cast("type[Any]", hint), value, prefix=f"{name}.")
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    options = typing.get_args(hint) if is_union else (hint,)
    for option in options:
        if typing.get_origin(option) is Literal:
            choices = typing.get_args(option)
            if value not in choices:
                raise unknown(name, value, choices)
            return value
        if option is float and type(value) is int:
            return float(value)
        if type(value) is option:
            return value
    wanted = " or ".join(o.__name__ for o in options if o is not types.NoneType)
    raise InputError(f"{name}={value!r} has the wrong type; give a value of type {wanted}")


def _write(config: Any, name: str, lines: list[str]) -> None:
    tables = []
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if dataclasses.is_dataclass(value):
            tables.append((f"{name}.{entry.name}".lstrip("."), value))
        elif value is not None:
            lines.append(f"{entry.name} = {_scalar(value)}")
    for table, value in tables:
        lines += ["", f"[{table}]"]
        _write(value, table, lines)


def _scalar(value: bool | float | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # DEL is the one character that JSON leaves raw and TOML forbids.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
