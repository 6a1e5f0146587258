"""The findings on a terminal: who measured, a table a group, what was left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table

from fp4lab.bench.results import Findings, Line

TITLES = {
    "operators": "operators",
    "products": "products",
    "limits": "threads, memory, calls",
    "peers": "other packages, the same work in the same run",
}
COLUMNS = ("row", "median", "quartiles", "measured", "target", "verdict", "rate", "note")
LEFT = ("row", "measured", "verdict")
NOTE_WIDTH = 48
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
#: wide enough for any table
WIDEST = 10_000


def show(findings: Findings) -> None:
    """Print the findings; no number is cut off on a narrow terminal."""
    console = Console()
    tables = [table(findings, group) for group in groups(findings)]
    measuring = Console(width=WIDEST)
    console.width = max([console.width, *(measuring.measure(shown).maximum for shown in tables)])
    for sentence in header(findings):
        console.print(sentence, highlight=False, markup=False)
    for shown in tables:
        console.print(shown)
    for sentence in footer(findings):
        console.print(sentence, highlight=False, markup=False)


def header(findings: Findings) -> list[str]:
    """The machine and the way of measuring, in lines."""
    at, how = findings.machine, findings.settings
    load = at["load_average"]
    return [
        f"{at['gpu'] or at['cpu']}: {instructions(at)}",
        f"fp4lab {at['fp4lab']} ({backend(at)}), torch {at['torch']}, {at['system']}, {at['date']}",
        f"{how['clock']}, threads {at['threads']} of {at['cores']} cores, load average "
        f"{'unknown' if load is None else load[0]}; {how['size']}x{how['size']}, median and "
        f"quartiles of {how['rounds']} rounds",
    ]


def backend(at: Mapping[str, Any]) -> str:
    """Who computed, and with which of the instruction sets that it has."""
    if at["instruction_set"]:
        sets = ", ".join(at["instruction_sets"])
        return f"{at['backend']}: {at['instruction_set']} of {sets}"
    return ": ".join(part for part in (at["backend"], at["backend_reason"]) if part)


def instructions(at: Mapping[str, Any]) -> str:
    """What the processor multiplies with."""
    names = {"avx512_bf16": "AVX512-BF16", "amx": "AMX"}
    extras = [name for key, name in names.items() if at[key]]
    return ", ".join([at["isa"], *(extras or ["no bfloat16 instructions"])])


def footer(findings: Findings) -> list[str]:
    """How many targets were met, what was left out, and what could not be compared."""
    verdicts = [line.met for line in findings.lines if line.met is not None]
    counted = [f"{sum(verdicts)} of {len(verdicts)} targets met"] if verdicts else []
    reasons: dict[str, list[str]] = {}
    for line in findings.lines:
        if line.left_out:
            reasons.setdefault(line.left_out, []).append(line.name)
    left = [f"left out: {', '.join(names)}: {why}" for why, names in reasons.items()]
    unjudged = any(line.target and not line.judged for line in findings.lines)
    size = (
        ["targets are stated for 4096x4096 and one thread, and not judged otherwise"]
        if unjudged
        else []
    )
    absent = [f"not compared: {name}: {why}" for name, why in findings.missing.items()]
    stopped = [f"interrupted at {findings.stopped!r}"] if findings.stopped else []
    return [*counted, *size, *left, *absent, *stopped]


def groups(findings: Findings) -> list[str]:
    """The tables that there are, in their order."""
    there = {line.group for line in findings.lines}
    return [group for group in TITLES if group in there]


def table(findings: Findings, group: str) -> Table:
    """One group's table, without the columns in which nothing stands."""
    lines = [line for line in findings.lines if line.group == group and not line.left_out]
    rows = [cells(line) for line in lines]
    used = [at for at in range(len(COLUMNS)) if at == 0 or any(row[at] for row in rows)]
    shown = Table(title=TITLES[group], title_justify="left")
    for heading in (COLUMNS[at] for at in used):
        if heading == "note":
            shown.add_column(heading, max_width=NOTE_WIDTH)
        else:
            justify: JustifyMethod = "left" if heading in LEFT else "right"
            shown.add_column(heading, justify=justify, no_wrap=True)
    for row in rows:
        shown.add_row(*(row[at] for at in used))
    return shown


def cells(line: Line) -> list[str]:
    """What stands in a line's columns."""
    verdict = {None: "", True: "met", False: "missed"}[line.met]
    target = "" if line.target is None else str(line.target)
    return [line.name, *_times(line), _value(line), target, verdict, _rate(line), line.note]


def _times(line: Line) -> list[str]:
    if line.seconds is None:
        return ["", ""]
    median = line.seconds.median
    scale, unit = next((pair for pair in UNITS if median >= pair[0]), UNITS[-1])
    shown = line.seconds.times(1 / scale)
    return [f"{shown.median:.3g} {unit}", f"{shown.low:.3g} to {shown.high:.3g}"]


def _value(line: Line) -> str:
    if line.value is None:
        return ""
    ratio = line.unit == "x"
    number = f"{line.value.median:.2f}x" if ratio else f"{line.value.median:.3g} {line.unit}"
    return f"{number.rstrip()} {line.against}".rstrip()


def _rate(line: Line) -> str:
    if line.rate is not None:
        return f"{line.rate / 1e9:.0f} GFLOP/s"
    return "" if line.bandwidth is None else f"{line.bandwidth / 1e9:.1f} GB/s"
