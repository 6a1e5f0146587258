"""`fp4lab diff`: its options, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from fp4lab.report.differences import differences

COMPARED = 0


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


def diff(given: DiffArguments) -> int:
    """Print the differences; the exit status."""
    print(differences(given.first, given.second))
    return COMPARED
