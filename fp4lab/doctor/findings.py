"""What was found: a line for each thing, as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

#: raised whenever a reader of the JSON would have to change
SCHEMA = 1


class State(StrEnum):
    """How a thing is: as it should be, worth knowing or missing, or broken."""

    OK = "ok"
    NOTE = "note"
    BROKEN = "broken"


MARKS = {State.OK: " ", State.NOTE: "-", State.BROKEN: "!"}


@dataclass(frozen=True)
class Line:
    """One thing: what it is, what was found, and what to do about it.

    >>> print(Line("extras", "gguf", "missing: GGUF files", State.NOTE, "pip install gguf").text)
    - gguf               missing: GGUF files
                         pip install gguf
    """

    section: str
    name: str
    value: str
    state: State = State.OK
    cure: str = ""

    @property
    def text(self) -> str:
        """The line for a reader, with the cure below it."""
        head = f"{MARKS[self.state]} {self.name:<19}{self.value}".rstrip()
        return head + (f"\n{'':<21}{self.cure}" if self.cure else "")

    @classmethod
    def from_json(cls, text: str) -> Line:
        """What `to_json` wrote."""
        plain: dict[str, Any] = json.loads(text)
        return cls(**{**plain, "state": State(plain["state"])})

    def to_json(self) -> str:
        """The line as JSON, in one line."""
        return json.dumps(asdict(self))


def broken(lines: Iterable[Line]) -> list[Line]:
    """Those that say something is broken."""
    return [line for line in lines if line.state == State.BROKEN]


def in_sections(lines: Iterable[Line]) -> dict[str, Any]:
    """Every line by its section and name, and whether fp4lab can be used."""
    lines = list(lines)
    sections: dict[str, dict[str, Any]] = {}
    for line in lines:
        plain = asdict(line)
        sections.setdefault(plain.pop("section"), {})[plain.pop("name")] = plain
    return {"schema": SCHEMA, "usable": not broken(lines), "sections": sections}


def as_text(lines: Iterable[Line]) -> str:
    """Every line in its section, and what it comes to."""
    lines = list(lines)
    parts = [
        "\n".join([section, *(textwrap.indent(line.text, "  ") for line in group)])
        for section, group in groupby(lines, key=lambda line: line.section)
    ]
    bad = broken(lines)
    end = "usable"
    if bad:
        end = "broken: " + ", ".join(f"{line.section} {line.name}" for line in bad)
    return "\n\n".join([*parts, end])
