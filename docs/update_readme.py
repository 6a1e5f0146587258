"""Rewrites the results in README.md and docs/speed.md from what was measured.

`make readme` calls it. The comparison's `summary.json` gives one row a recipe. The test report is
pytest's JUnit XML: a test that matches a recorded ("golden") array says so with
`record_property("golden", "te_nvfp4.npz/normal/1x16/codes")`, and the arrays of each file that some
passing test names are counted. The benchmark is the JSON of `fp4lab bench`, which becomes
docs/speed.md; without one that page stays as it is. Left out: any judgement; the tables hold what
was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
START, END = "<!-- results:start -->", "<!-- results:end -->"
SPEED = ("<!-- speed:start -->", "<!-- speed:end -->")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table whose first column is text and whose others are numbers."""
    names = list(head)
    rule = ["---", *["---:"] * (len(names) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [names, rule, *rows])


def number(value: float | None, spec: str) -> str:
    """The number as the format says, or a dash for one that was not measured."""
    return "-" if value is None else format(value, spec)


def recipe_table(recipes: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a recipe: final loss, gap to the baseline with its interval, and relative time."""

    def row(name: str, values: Mapping[str, Any]) -> list[str]:
        interval = values.get("interval")
        return [
            f"`{name}`",
            number(values["val_loss"], ".4f"),
            number(values.get("gap"), "+.4f"),
            number(values.get("gap_percent"), "+.2f"),
            "-" if interval is None else f"{interval[0]:+.4f} to {interval[1]:+.4f}",
            str(values["seeds"]),
            number(values.get("step_time_ratio"), ".2f"),
        ]

    head = ["recipe", "loss (nats)", "gap", "gap (%)", "95 % interval", "seeds", "step time"]
    return table(head, (row(name, values) for name, values in recipes.items()))


def golden_counts(report: Path) -> Counter[str]:
    """How many arrays of each recorded file a test matched; an array that a test missed is none."""
    matched: set[str] = set()
    missed: set[str] = set()
    for case in ElementTree.parse(report).iter("testcase"):
        names = [
            item.get("value", "") for item in case.iterfind("properties/property[@name='golden']")
        ]
        bad = any(case.find(outcome) is not None for outcome in ("failure", "error", "skipped"))
        (missed if bad else matched).update(names)
    return Counter(name.partition("/")[0] for name in sorted(matched - missed))


def results(summary: Mapping[str, Any], golden: Counter[str]) -> str:
    """The text between the two markers."""
    rows = [*golden.items(), ("all", golden.total())]
    return "\n\n".join(
        [
            "The demo's recipes. The gap is to the first row, in nats; one seed gives no interval.",
            recipe_table(summary["recipes"]),
            "Recorded arrays of other tools that the tests match to the last bit.",
            table(["file", "arrays"], ((name, str(count)) for name, count in rows)),
        ]
    )


def speed(found: Mapping[str, Any]) -> str:
    """The benchmark: the machine in words, operators, and everything else that has a target."""
    at, how = found["machine"], found["settings"]
    rows = [row for row in found["rows"] if row["value"] is not None]
    has_bf16 = at["amx"] or at["avx512_bf16"] or at["gpu"]
    verdicts = [row["met"] for row in rows if row["met"] is not None]
    head = (
        f"{at['gpu'] or at['cpu']} ({at['isa']}, {'with' if has_bf16 else 'without'} bfloat16 "
        f"instructions), {how['clock']}, {at['threads']} thread{'s' * (at['threads'] > 1)}, "
        f"torch {at['torch']}, {at['date']}; medians of {how['rounds']} rounds at "
        f"{how['size']}x{how['size']}. {sum(verdicts)} of {len(verdicts)} targets met."
    )
    others = [row for row in rows if row["group"] != "operators" and row["target"] is not None]
    parts = [head, operator_table(rows)]
    if others:
        names = ["row", "time", "measured", "target"]
        parts.append(table(names, map(other_row, others)))
    return "\n\n".join(parts)


def operator_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """One row an operator: its time at float32, over a copy, and what bfloat16 takes of that.

    Beside it, over the copy, a call that has to be given new memory for its result.
    """
    pairs: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["group"] == "operators":
            name, *kind = row["name"].split(", ")
            pairs.setdefault(name, {})[", ".join(kind)] = row
    head = ["operator", "float32", "measured", "target", "with a new result", "bfloat16"]
    return table(
        head,
        (
            [
                *(f"`{name}`", *other_row(pair["float32"])[1:]),
                *(measured(pair.get(kind)) for kind in ("new result, float32", "bfloat16")),
            ]
            for name, pair in pairs.items()
        ),
    )


def other_row(row: Mapping[str, Any]) -> list[str]:
    """Name, time, what was measured, and the target."""
    target = row["target"]
    limit = "-" if target is None else f"{target['sense']} {target['limit']:g}"
    return [f"`{row['name']}`", duration(row["seconds"]), measured(row), limit]


def duration(seconds: Mapping[str, float] | None) -> str:
    """The median in milliseconds, or in seconds from one on."""
    if seconds is None:
        return "-"
    median = seconds["median"]
    return f"{median:.3g} s" if median >= 1 else f"{1e3 * median:.3g} ms"


def measured(row: Mapping[str, Any] | None) -> str:
    """The value that a target speaks of and what it is relative to, bold where it was missed."""
    if row is None:
        return "-"
    unit = row["unit"] if row["unit"] == "x" else f" {row['unit']}".rstrip()
    value = f"{row['value']['median']:.3g}{unit} {row['against']}".rstrip()
    return f"**{value}**" if row["met"] is False else value


def replace_section(text: str, section: str, *, marks: tuple[str, str] = (START, END)) -> str:
    """A page's text with what stands between the markers replaced."""
    start, end = marks
    if text.count(start) != 1 or text.count(end) != 1:
        raise ValueError(f"the page needs {start} and {end} once each")
    before, rest = text.split(start)
    return f"{before}{start}\n{section}\n{end}{rest.split(end)[1]}"


def main() -> int:
    """Rewrite the pages in place."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("summary", type=Path, help="summary.json of a comparison")
    parser.add_argument("report", type=Path, help="JUnit XML of the tests against recorded arrays")
    parser.add_argument("--speed", type=Path, help="JSON of a benchmark")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--speed-page", type=Path, default=ROOT / "docs" / "speed.md")
    options = parser.parse_args()
    for path in (options.summary, options.report, options.speed, options.readme):
        if path is not None and not path.is_file():
            first = "make bench" if path == options.speed else "make demo"
            print(f"{path} does not exist; run {first}, then make readme", file=sys.stderr)
            return 2
    section = results(json.loads(options.summary.read_text()), golden_counts(options.report))
    options.readme.write_text(replace_section(options.readme.read_text(), section))
    if options.speed is not None:
        section = speed(json.loads(options.speed.read_text()))
        page = replace_section(options.speed_page.read_text(), section, marks=SPEED)
        options.speed_page.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
