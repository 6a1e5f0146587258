"""Paths that a user gives, checked before anything is opened."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fp4lab.errors import InputError


def as_path(argument: str, value: object) -> Path:
    """The path that a value stands for; InputError where it is none, or empty.

    >>> as_path("path", "")
    Traceback (most recent call last):
    fp4lab.errors.InputError: path='' is empty; give the path of a file or folder, . for this folder
    """
    given = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(given, str):
        raise InputError(f"{argument}={value!r} is no path; give a str or a pathlib.Path")
    if not given:
        raise InputError(
            f"{argument}='' is empty; give the path of a file or folder, . for this folder"
        )
    if "\0" in given:
        raise InputError(f"{argument}={given!r} has a zero byte, which no path has; give another")
    return Path(given)


def check_regular(path: Path, shown: str) -> None:
    """InputError unless a path is a file, for a pipe or device may never end; nothing is opened.

    Raises OSError where nothing is there. `shown` names the path in the message.

    >>> check_regular(Path("/dev/null"), "path='/dev/null'")
    Traceback (most recent call last):
    fp4lab.errors.InputError: path='/dev/null' is a pipe or device; give a file
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputError(f"{shown} is a folder; give a file")
    if not stat.S_ISREG(mode):
        raise InputError(f"{shown} is a pipe or device; give a file")
