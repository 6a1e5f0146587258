"""The errors a user can cause, in one place.

`InputError` is raised for everything a caller can get wrong: its message is one line that names the
argument, its value, the rule it broke and the cure, and the command line prints just that line. Any
other exception that reaches the command line is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex

#: names that are all listed rather than one that is hardly alike; names that begin alike
FEW, LISTED = 3, 12


class InputError(ValueError):
    """An argument, a file or a name that cannot be used as given.

    >>> from fp4lab import formats
    >>> formats.get("nvpf4")
    Traceback (most recent call last):
    fp4lab.errors.InputError: format='nvpf4' is not known; did you mean 'nvfp4'?
    """


class NonFiniteError(RuntimeError):
    """Training met a NaN or an infinity; the message names the step, the layer and the tensor."""


def describe(error: Exception) -> str:
    """The message of an error that a user can cause, in one line, a full disk with the cure.

    >>> describe(PermissionError(13, "Permission denied", "a.toml"))
    'a.toml: Permission denied'
    """
    if not isinstance(error, OSError) or error.strerror is None:
        return " ".join(str(error).strip().splitlines())
    text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        text += "; what was saved before is intact: free some space and give the command again"
    return text


def expect(argument: str, value: object, kind: type, cure: str, *, optional: bool = False) -> None:
    """InputError unless the value is of the kind, or None where it is optional."""
    if not isinstance(value, kind) and not (optional and value is None):
        shown = repr(value)
        shown = shown if len(shown) <= 60 and "\n" not in shown else type(value).__name__
        raise InputError(f"{argument}={shown} is not a {kind.__name__}; {cure}")


def whole(argument: str, value: object, low: int, high: int) -> int:
    """The integer that a value stands for (numpy's too); InputError outside 0 <= low to high."""
    if type(value) is int and low <= value <= high:
        return value
    number = -1
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        number = operator.index(value)
    if not low <= number <= high:
        power = (high + 1).bit_length() - 1
        shown = f"2^{power} - 1" if high + 1 == 1 << power else str(high)
        raise InputError(f"{argument}={value!r} should be an integer from {low} to {shown}")
    return number


def optional(module: str, *, argument: str, package: str) -> Any:
    """A module of a package that may be missing; InputError, with the command that adds it, if so.

    >>> optional("absent", argument="log='absent'", package="absent")
    Traceback (most recent call last):
    fp4lab.errors.InputError: log='absent' needs the package absent; add it: pip install absent
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"{argument} needs the package {package}; add it: pip install {package}"
        ) from None


def unknown(argument: str, value: object, known: Iterable[str], *, shown: str = "") -> InputError:
    """The error for a name that is not in a table, with the nearest known name as the cure.

    Near are, whatever the case, names that begin with it, or that are spelled alike. Where none is,
    or there are few, all are listed, or what is `shown` instead.

    >>> str(unknown("format", "MXFP6", ["mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "nvfp4"]))
    "format='MXFP6' is not known; use one of mxfp6_e2m3, mxfp6_e3m2"
    """
    names, given = sorted(known), str(value).lower()
    near = [name for name in names if given and name.lower().startswith(given)]
    if not near:
        folded = {name.lower(): name for name in names}
        alike = 0.7 if len(names) <= FEW else 0.6
        near = [folded[name] for name in difflib.get_close_matches(given, folded, 1, alike)]
    if near and all(name.startswith(near[0]) for name in near):
        near = near[:1]
    if len(near) > LISTED:
        near = []
    listed = ", ".join(near) or shown or ", ".join(names)
    hint = f"did you mean {near[0]!r}?" if len(near) == 1 else f"use one of {listed}"
    return InputError(f"{argument}={value!r} is not known; {hint}")
