"""Figures as JSON."""

from __future__ import annotations

import dataclasses
import math
from typing import Any


def plain(value: Any) -> Any:
    """Dataclasses and named tuples as tables; numbers that JSON does not know as texts.

    >>> from fp4lab.functional import Error
    >>> plain(Error(float("inf"), 0.0, 1.0, 1.0, 0.0, 0.0))["sqnr_db"]
    'inf'
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
