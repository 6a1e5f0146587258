"""Figures as JSON, for whoever reads them: what `--json` writes."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from fp4lab.specs.files import write_text

#: the path that stands for standard output
STDOUT = Path("-")


def as_json(value: object) -> str:
    """Dataclasses, named tuples, tables and lists as indented JSON.

    JSON has no numbers that are not finite: they are the texts "inf", "-inf" and "nan", which
    `float` reads. All others round-trip exactly.

    >>> print(as_json({"sqnr_db": float("inf"), "bits": (4, 8.25)}))
    {
      "sqnr_db": "inf",
      "bits": [
        4,
        8.25
      ]
    }
    """
    return json.dumps(as_plain(value), indent=2, allow_nan=False)


def put_json(path: Path, value: object) -> None:
    """Write `as_json` to a file, replaced at once, whose folder is made; `-` prints it.

    A link stays one, and what is no file, as a pipe or /dev/null, is written to.

    >>> put_json(Path("new/figures.json"), {"bits": 4})
    >>> print(Path("new/figures.json").read_text(), end="")
    {
      "bits": 4
    }
    """
    text = as_json(value)
    if path == STDOUT:
        print(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_text(text + "\n", encoding="utf-8")
    else:
        write_text(path.resolve(), text + "\n")


def as_plain(value: Any) -> Any:
    """What `as_json` writes, as tables, lists, texts and numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return as_plain(value._asdict())
    if isinstance(value, dict):
        return {key: as_plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
