"""What a benchmark found: a line for each thing that was timed, the machine, and their JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fp4lab.bench.measure import Spread
from fp4lab.errors import InputError
from fp4lab.specs.figures import put_json

#: raised whenever a reader of the JSON would have to change
SCHEMA = 1


@dataclass(frozen=True)
class Target:
    """The value that a line should keep to.

    >>> str(Target(2.0)), Target(3.0, "at least").met(2.9)
    ('at most 2', False)
    """

    limit: float
    sense: Literal["at most", "at least"] = "at most"

    def met(self, value: float) -> bool:
        """Whether a value keeps to it."""
        return value <= self.limit if self.sense == "at most" else value >= self.limit

    def __str__(self) -> str:
        return f"{self.sense} {self.limit:g}"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a table.

    Args:
        group: the table it belongs to.
        name: what was done.
        seconds: time of a call, None where no time was taken.
        value: what the target speaks of, with quartiles: a ratio, or a number in `unit`.
        unit: of the value; "x" for a ratio, "us" for microseconds.
        against: what the ratio is to, in words.
        target: the limit; None where none is stated.
        judged: whether the target was stated for the size and the threads that were measured.
        moved: bytes read and written at least.
        flops: multiplications and additions of a product.
        roof: bytes (or operations) a second of the copy (or matmul) in the same run.
        note: what else is to be known.
        left_out: why it was not measured.
    """

    group: str
    name: str
    seconds: Spread | None = None
    value: Spread | None = None
    unit: str = "x"
    against: str = ""
    target: Target | None = None
    judged: bool = True
    moved: int = 0
    flops: int = 0
    roof: float | None = None
    note: str = ""
    left_out: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None where there is none or nothing was measured."""
        if self.target is None or self.value is None or not self.judged:
            return None
        return self.target.met(self.value.median)

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second; None for what moves none to speak of."""
        return self.moved / self.seconds.median if self.moved and self.seconds else None

    @property
    def rate(self) -> float | None:
        """Operations a second; None for what is no product."""
        return self.flops / self.seconds.median if self.flops and self.seconds else None


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything that a benchmark found.

    `machine` says where (see `bench.machine`), `settings` how: size, rounds, threads, clock.
    """

    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    lines: tuple[Line, ...]
    missing: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Packages that could not be measured, and why."""
    stopped: str = ""
    """The row at which the user stopped it; neither it nor those after it were measured."""

    def save(self, path: Path) -> None:
        """Write the findings, and whether each target was met, as `put_json` does."""
        plain = {
            "schema": SCHEMA,
            "machine": dict(self.machine),
            "settings": dict(self.settings),
            "rows": [{**dataclasses.asdict(line), "met": line.met} for line in self.lines],
            "missing": dict(self.missing),
            "stopped": self.stopped,
        }
        put_json(path, plain)

    @classmethod
    def load(cls, path: Path) -> Findings:
        """Read what `save` wrote.

        Raises:
            InputError: a file of another kind or of another version.
        """
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            if plain["schema"] != SCHEMA:
                raise InputError(f"{path} has schema {plain['schema']}; measure anew for {SCHEMA}")
            lines = tuple(_line(row) for row in plain["rows"])
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise InputError(f"{path} holds no benchmark: {error!r}; write one by --json") from None
        return cls(
            machine=plain["machine"],
            settings=plain["settings"],
            lines=lines,
            missing=plain["missing"],
            stopped=plain.get("stopped", ""),
        )


def _line(row: Mapping[str, Any]) -> Line:
    fields = {key: value for key, value in row.items() if key != "met"}
    for name in ("seconds", "value"):
        if fields[name] is not None:
            fields[name] = Spread(**{key: float(value) for key, value in fields[name].items()})
    if fields["target"] is not None:
        fields["target"] = Target(**fields["target"])
    return Line(**fields)
