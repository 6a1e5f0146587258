"""Frozen dataclasses to plain data (dicts, lists, strings, numbers) and back, without loss.

One rule for each type, driven by the annotations:

    dataclass         a dict of the fields that differ from their defaults; a registered one's name
    Enum              its value when that is a string, else its name in lower case
    tuple[T, ...]     a list, as tuple[A, B] of exactly so many
    dict[str, T]      itself
    None              an absent key; the string "none" where the default is something else
    Literal, bool, int, float, str, Any    as they are

Leaving the defaults out keeps files short and keeps old files and hashes valid when a field is
added, so the default of a field must never change its meaning. Reading is strict: an unknown key, a
wrong type or a missing field is an `InputError` with the path of the value. Left out: sets, dicts
with other keys and classes that are not dataclasses; no description here needs them.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Literal, TypeAlias, TypeVar, Union

from fp4lab.errors import InputError, unknown

T = TypeVar("T")
Plain: TypeAlias = bool | int | float | str | list["Plain"] | dict[str, "Plain"] | None
#: the registered name of an object, None where it has to be written out
NameOf: TypeAlias = Callable[[object], str | None]
#: the registered object of a type by its name; raises InputError for an unknown name
ByName: TypeAlias = Callable[[type, str], object]

NONE = "none"


def label(value: Enum) -> str:
    """How an enum member is written in files and tables."""
    return value.value if isinstance(value.value, str) else value.name.lower()


def repr_without_defaults(value: Any) -> str:
    """`Class(field=..)` of a dataclass, with the fields that are not at their defaults."""
    shown = []
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if not (_has_default(field) and item == _default(field)):
            shown.append(f"{field.name}={item.name if isinstance(item, Enum) else repr(item)}")
    return f"{type(value).__name__}({', '.join(shown)})"


def to_plain(value: object, *, name_of: NameOf = lambda _: None) -> Plain:
    """Plain data for a dataclass and everything inside it.

    Raises:
        InputError: a value of a type that has no rule above.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Block:
    ...     size: int = 16
    ...     axis: int = -1
    >>> to_plain(Block(size=32))
    {'size': 32}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return name_of(value) or _fields_to_plain(value, name_of)
    if isinstance(value, Enum):
        return label(value)
    if isinstance(value, (tuple, list)):
        return [to_plain(item, name_of=name_of) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item, name_of=name_of) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise InputError(f"{value!r} of type {type(value).__name__} cannot be written as plain data")


def _fields_to_plain(value: Any, name_of: NameOf) -> dict[str, Plain]:
    table = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if _has_default(field) and item == _default(field):
            continue
        table[field.name] = NONE if item is None else to_plain(item, name_of=name_of)
    return table


def from_plain(kind: type[T], data: object, *, path: str, by_name: ByName | None = None) -> T:
    """The `kind` that `to_plain` wrote as `data`; `path` names the value in error messages.

    Raises:
        InputError: an unknown key, a missing field, a value of the wrong type or an unknown name.
    """
    return typing.cast(T, _decode(kind, data, path, by_name))


def _decode(hint: Any, data: object, path: str, by_name: ByName | None) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, data, path, by_name)
    if origin is tuple:
        return _decode_tuple(arguments, data, path, by_name)
    if origin is dict:
        if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
            raise _wrong(path, data, "a table")
        return {k: _decode(arguments[1], d, f"{path}.{k}", by_name) for k, d in data.items()}
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(typing.cast(type, hint), data, path, by_name)
    if origin is Literal or (isinstance(hint, type) and issubclass(hint, Enum)):
        return _decode_choice(hint, data, path)
    return _decode_scalar(hint, data, path)


def _decode_tuple(
    arguments: tuple[Any, ...], data: object, path: str, by_name: ByName | None
) -> object:
    if not isinstance(data, (list, tuple)):
        raise _wrong(path, data, "a list")
    hints = arguments[:1] * len(data) if Ellipsis in arguments else arguments
    if len(hints) != len(data):
        raise InputError(f"{path}={data!r} should be a list of {len(hints)}, not {len(data)}")
    pairs = enumerate(zip(hints, data, strict=True))
    return tuple(_decode(hint, item, f"{path}[{i}]", by_name) for i, (hint, item) in pairs)


def _decode_choice(hint: Any, data: object, path: str) -> object:
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        if not any(data == choice and type(data) is type(choice) for choice in choices):
            raise unknown(path, data, [str(choice) for choice in choices])
        return data
    members = {label(member): member for member in hint}
    if not isinstance(data, str) or data not in members:
        raise unknown(path, data, members)
    return members[data]


def _decode_union(arguments: Any, data: object, path: str, by_name: ByName | None) -> object:
    if type(None) in arguments and (data is None or data == NONE):
        return None
    kinds = [kind for kind in arguments if kind is not type(None)]
    if len(kinds) == 1:
        return _decode(kinds[0], data, path, by_name)
    reasons = []
    for kind in kinds:
        try:
            return _decode(kind, data, path, by_name)
        except InputError as error:
            reasons.append(str(error))
    raise InputError("; or ".join(reasons))


def _decode_dataclass(kind: Any, data: object, path: str, by_name: ByName | None) -> object:
    if isinstance(data, str) and by_name is not None:
        try:
            return by_name(kind, data)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    if not isinstance(data, Mapping):
        raise _wrong(path, data, f"a table with the fields of {kind.__name__}")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in data:
        if key not in fields:
            raise unknown(f"field of {path}", key, fields)
    for name, field in fields.items():
        if name not in data and not _has_default(field):
            raise InputError(f"{path}.{name} is missing; {kind.__name__} has no default for it")
    values = {key: _decode(hints[key], data[key], f"{path}.{key}", by_name) for key in data}
    return kind(**values)


def _decode_scalar(hint: Any, data: object, path: str) -> object:
    if hint is float and type(data) is int:
        return float(data)
    if hint is not Any and type(data) is not hint:
        raise _wrong(
            path, data, {bool: "true or false", int: "an integer"}.get(hint, hint.__name__)
        )
    return data


def _wrong(path: str, data: object, expected: str) -> InputError:
    return InputError(f"{path}={data!r} should be {expected}, not {type(data).__name__}")


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    factory = field.default_factory
    return factory() if factory is not dataclasses.MISSING else dataclasses.MISSING
