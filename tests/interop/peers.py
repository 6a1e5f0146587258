"""Other tools' packages, imported where the checkout does not stand in their way."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def elsewhere() -> list[str]:
    """The places of packages without the checkout.

    transformers asks for a package `kernels`, and the folder of that name would answer.
    """
    return [path for path in sys.path if Path(path or ".").resolve() != ROOT]


def peer(name: str) -> Any:
    """An optional package; the test, or its module, is skipped where it is missing."""
    before = sys.path[:]
    sys.path[:] = elsewhere()
    try:
        return pytest.importorskip(name, reason=f"compares with {name}")
    finally:
        sys.path[:] = before
