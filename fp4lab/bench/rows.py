"""What a row of a benchmark is: how its work is set up, what is timed, and what the time means.

A new row is a `Row` in the table of `operators`, `products`, `limits` or `peer_rows`.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fp4lab.bench.measure import LEAST_ROUNDS, Run, Spread
from fp4lab.bench.results import Line, Target
from fp4lab.errors import InputError
from fp4lab.kernels.matmul.dispatch import has_bf16

#: the side of the matrices that the targets were stated for
STATED_SIZE = 4096


class LeftOutError(Exception):
    """Raised while a row is set up: it cannot be measured here, and the message says why."""


def one_line(error: BaseException) -> str:
    """The first line of what an error says, with its kind."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:160]}".rstrip(": ")


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as it stands in a line: `float32`."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How to measure: `size` is the side of the square matrices, from which all shapes follow."""

    size: int = STATED_SIZE
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    threads: int = 1
    rounds: int = LEAST_ROUNDS

    @property
    def matmul_dtype(self) -> torch.dtype:
        """bfloat16 where the device has instructions for it, else float32."""
        return torch.bfloat16 if has_bf16(self.device) else torch.float32

    def matrix(
        self, rows: int, columns: int, *, dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> Tensor:
        """Normally distributed numbers, the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(rows, columns, generator=generator).to(self.device, dtype)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A line that comes of a job: the time of one run, and its ratio to another's.

    Args:
        name: of the line.
        of: the run whose time it is.
        to: the run it is divided by; None: the target speaks of the time itself, in microseconds.
        against: the words for `to`.
        target: of the ratio.
        faster: the ratio is `to / of`, how many times faster.
        factor: multiplies the ratio.
        moved: bytes that a call reads and writes at least.
        flops: multiplications and additions of a call.
        roof: the run whose rate is the most there could be, with its bytes (or the same `flops`).
        note: what else is to be known.
    """

    name: str
    of: str
    to: str | None = None
    against: str = ""
    target: Target | None = None
    faster: bool = False
    factor: float = 1.0
    moved: int = 0
    flops: int = 0
    roof: tuple[str, int] | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work that is set up: runs to be timed in turn and the claims about them.

    Args:
        runs: by name.
        claims: a line each.
        wall: by wall clock whatever the threads, for runs that choose their own.
        lines: what was found without timing.
    """

    runs: Mapping[str, Run] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    wall: bool = False
    lines: Sequence[Line] = ()


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: its table, its name, its target, and how its work is set up."""

    group: str
    name: str
    job: Callable[[Setting, Row], Job]
    target: Target | None = None
    #: whether the target is stated for 4096x4096
    sized: bool = True

    def prepare(self, setting: Setting) -> Job:
        """Set the work up.

        Raises:
            LeftOutError: it cannot be measured here.
        """
        return self.job(setting, self)

    def line(self, value: float, *, unit: str, against: str = "") -> Line:
        """The line of a number that no clock gave."""
        return Line(
            group=self.group,
            name=self.name,
            value=Spread(value, value, value),
            unit=unit,
            against=against,
            target=self.target,
        )


def pick(rows: Sequence[Row], patterns: str | None) -> list[Row]:
    """The rows whose name contains, or matches, one of the patterns (commas between them).

    Raises:
        InputError: a pattern that picks none, with the names that are near.

    >>> rows = [Row(group="g", name=name, job=None) for name in ("cast e4m3", "gpt step")]
    >>> [row.name for row in pick(rows, "cast*,gpt")]
    ['cast e4m3', 'gpt step']
    """
    if patterns is None:
        return list(rows)
    chosen: set[str] = set()
    for pattern in (part.strip() for part in patterns.split(",")):
        wanted = pattern if set("*?[") & set(pattern) else f"*{pattern}*"
        found = fnmatch.filter([row.name for row in rows], wanted) if pattern else []
        if not found:
            raise _no_row(pattern, rows)
        chosen.update(found)
    return [row for row in rows if row.name in chosen]


def _no_row(pattern: str, rows: Sequence[Row]) -> InputError:
    names = [row.name for row in rows]
    words = sorted({word for name in names for word in name.split()})
    near = difflib.get_close_matches(pattern, [*words, *names], n=3)
    hint = (
        f"did you mean {' or '.join(map(repr, near))}?" if near else f"words are {', '.join(words)}"
    )
    return InputError(f"ops={pattern!r} picks no row; {hint}")
