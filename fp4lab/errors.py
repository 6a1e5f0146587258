"""The errors a user can cause, in one place.

`InputError` is raised for everything a caller can get wrong: its message is one line that names the
argument, its value, the rule it broke and the cure, and the command line prints just that line. Any
other exception that reaches the command line is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
import errno
import operator
from collections.abc import Iterable
from typing import SupportsIndex


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


def unknown(argument: str, value: object, known: Iterable[str], *, shown: str = "") -> InputError:
    """The error for a name that is not in a table, with the nearest known name as the cure.

    Where none is near, all are listed, or what is `shown` instead.
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"use one of {shown or ', '.join(names)}"
    return InputError(f"{argument}={value!r} is not known; {hint}")
