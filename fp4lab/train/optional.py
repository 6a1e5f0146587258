"""Packages that only an option needs."""

from __future__ import annotations

import importlib
from typing import Any

from fp4lab.errors import InputError


def optional(module: str, *, argument: str, package: str) -> Any:
    """A module of a package that may be missing; InputError, with the cure, if it is.

    >>> optional("absent", argument="absent=True", package="absent")
    Traceback (most recent call last):
    fp4lab.errors.InputError: absent=True needs the package absent; pip install absent, or leave ...
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"{argument} needs the package {package}; pip install {package}, or leave it out"
        ) from None
