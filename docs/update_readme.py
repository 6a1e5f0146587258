"""Rewrites the results in README.md from a finished comparison and a test report.

`make readme` calls it. The comparison's `summary.json` gives one row a recipe. The test report is
pytest's JUnit XML: a test that matches a recorded ("golden") array says so with
`record_property("golden", "te_nvfp4.npz/normal/1x16/codes")`, and the arrays of each file that some
passing test names are counted. Left out: any judgement; the table holds what was measured.
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


def replace_section(text: str, section: str) -> str:
    """The README's text with what stands between the markers replaced."""
    if text.count(START) != 1 or text.count(END) != 1:
        raise ValueError(f"README.md needs {START} and {END} once each")
    before, rest = text.split(START)
    return f"{before}{START}\n{section}\n{END}{rest.split(END)[1]}"


def main() -> int:
    """Rewrite README.md in place."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("summary", type=Path, help="summary.json of a comparison")
    parser.add_argument("report", type=Path, help="JUnit XML of the tests against recorded arrays")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    options = parser.parse_args()
    for path in (options.summary, options.report, options.readme):
        if not path.is_file():
            print(f"{path} does not exist; run make demo, then make readme", file=sys.stderr)
            return 2
    section = results(json.loads(options.summary.read_text()), golden_counts(options.report))
    options.readme.write_text(replace_section(options.readme.read_text(), section))
    return 0


if __name__ == "__main__":
    sys.exit(main())
