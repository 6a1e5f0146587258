"""Counts the recorded arrays that fp4lab matches: a table, or JSON with --json.

Run from the project's root: `python -m tests.golden.count`. For each file: `arrays` it holds (apart
from inputs), `matched` to the last byte, of which `partly` leaves named elements out and `payload`
differs in the sign or payload of some NaN, `different` (none, or a test fails), and the arrays that
are not applicable by reason. docs/update_readme.py may take the JSON.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

from tests.golden import arrays, catalogue

COLUMNS = ("arrays", "matched", "partly", "payload", "different", "not applicable")


def count(file: str) -> dict[str, Any]:
    """The figures of one file; reasons with the number of arrays (or elements) they cover."""
    reasons: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    figures: Counter[str] = Counter()
    for key in arrays.load(file):
        reason = catalogue.reason_not(file, key)
        if reason == catalogue.INPUT:
            continue
        figures["arrays"] += 1
        if reason is not None:
            figures["not applicable"] += 1
            reasons[reason] += 1
            continue
        outcome = catalogue.compare(file, key)
        matched = outcome.different == 0
        figures["matched" if matched else "different"] += 1
        figures["partly"] += bool(outcome.skipped)
        figures["payload"] += bool(outcome.payloads)
        if outcome.skipped:
            elements[outcome.why] += outcome.skipped
    return {
        **{column: figures[column] for column in COLUMNS},
        "reasons": dict(reasons),
        "elements left out": dict(elements),
    }


def table(counts: dict[str, dict[str, Any]]) -> str:
    """The figures as text, with the reasons under them."""
    lines = [" ".join([f"{'file':<26}", *(f"{column:>14}" for column in COLUMNS)])]
    for file, figures in counts.items():
        lines.append(" ".join([f"{file:<26}", *(f"{figures[column]:>14}" for column in COLUMNS)]))
    for file, figures in counts.items():
        lines += [f"{file}: {n} arrays: {why}" for why, n in figures["reasons"].items()]
        lines += [f"{file}: {n} elements: {why}" for why, n in figures["elements left out"].items()]
    return "\n".join(lines)


def main() -> None:
    """Print the counts of all files."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    counts = {file: count(file) for file in catalogue.FILES if file != "inputs"}
    counts["all"] = {column: sum(c[column] for c in counts.values()) for column in COLUMNS}
    counts["all"] |= {"reasons": {}, "elements left out": {}}
    print(json.dumps(counts, indent=2) if options.json else table(counts))


if __name__ == "__main__":
    main()
