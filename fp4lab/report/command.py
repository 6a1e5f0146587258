"""`fp4lab report` and `fp4lab diff`: their options, and what they do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from fp4lab import report
from fp4lab.report.differences import differences
from fp4lab.report.folder import SUMMARY
from fp4lab.report.summary import Summary

DONE = 0


@dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Draw the report of a finished comparison again, and print its table."""

    folder: Positional[Path]
    """The comparison's folder."""


@dataclass(frozen=True, kw_only=True)
class DiffArguments:
    """Print what differs between two runs: config, recipe, data, environment and losses.

    What cannot change a weight (how often is saved, what is shown) is left out. The exit status is
    0 whether they differ or not.
    """

    first: Positional[Path]
    """A run's folder."""
    second: Positional[Path]
    """Another run's folder."""


def redraw(given: ReportArguments) -> int:
    """Write the report again; the exit status."""
    path = report.write(given.folder)
    report.show(Summary.read(given.folder / SUMMARY))
    print(f"report: {path}")
    return DONE


def diff(given: DiffArguments) -> int:
    """Print the differences; the exit status."""
    print(differences(given.first, given.second))
    return DONE
