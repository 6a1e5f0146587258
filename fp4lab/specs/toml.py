"""Writing TOML; the standard library's `tomllib` reads it back to the same values.

Covers what `fp4lab.specs.plain` produces: tables, lists of tables, lists of scalars, strings,
booleans, integers and floats (the shortest decimal that reads back to the same float64, `inf` and
`nan` included). Left out: dates, multi-line strings, comments and inline tables.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping

from fp4lab.errors import InputError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_INT64 = range(-(2**63), 2**63)


def dumps(table: Mapping[str, object]) -> str:
    """TOML for a dict of plain data; scalars come first, so key order is kept only among them.

    Raises:
        InputError: None, a list that mixes tables with scalars, an integer over 64 bits, or a type
            TOML has no word for; the message has the key's path.

    >>> print(dumps({"seed": 7, "model": {"dim": 64}}), end="")
    seed = 7
    <BLANKLINE>
    [model]
    dim = 64
    """
    return "\n".join(_lines(table, ())).strip("\n") + "\n"


def _lines(table: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    tables = {k: v for k, v in table.items() if isinstance(v, Mapping) or _is_table_list(v)}
    for key, value in table.items():
        if key not in tables:
            yield f"{_key(key)} = {_value(value, (*path, key))}"
    for key, value in tables.items():
        inner = (*path, key)
        header = ".".join(map(_key, inner))
        if isinstance(value, Mapping):
            # A table that holds only tables is implied by their headers.
            if not value or not all(
                isinstance(v, Mapping) or _is_table_list(v) for v in value.values()
            ):
                yield f"\n[{header}]"
            yield from _lines(value, inner)
        else:
            assert isinstance(value, (list, tuple))
            for item in value:
                if not isinstance(item, Mapping):
                    raise InputError(f"{'.'.join(inner)} mixes tables with {item!r}; TOML cannot")
                yield f"\n[[{header}]]"
                yield from _lines(item, inner)


def _is_table_list(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    # JSON's escapes are a subset of TOML's; TOML also forbids a raw DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object, path: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int) and value in _INT64:
        return repr(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item, path) for item in value) + "]"
    raise InputError(f"{'.'.join(path)}={value!r} cannot be written as TOML; leave it out")


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    # repr is the shortest exact decimal; TOML spells infinity as Python does.
    return repr(value)
