"""`fp4lab doctor`: its option, and what it does."""

from __future__ import annotations

from dataclasses import dataclass

from fp4lab.doctor import findings, hardware, packages, probe
from fp4lab.specs.figures import STDOUT, put_json
from fp4lab.specs.options import JsonFile

USABLE, BROKEN = 0, 2


@dataclass(frozen=True, kw_only=True)
class DoctorArguments:
    """Show what fp4lab finds here, try every backend, and name the cure for what is missing.

    A line with "-" is something to know, one with "!" is broken. The status is 0 where fp4lab can
    be used and 2 where something is broken.
    """

    json: JsonFile = None
    """File for what was found; - prints it instead of the text."""


def doctor(given: DoctorArguments) -> int:
    """Print what was found; the exit status."""
    lines = [
        *packages.versions(),
        *hardware.processor(),
        *hardware.gpus(),
        *probe.lines(),
        *hardware.caches(),
        *packages.extras(),
    ]
    if given.json != STDOUT:
        print(findings.as_text(lines))
    if given.json:
        put_json(given.json, findings.in_sections(lines))
    return BROKEN if findings.broken(lines) else USABLE
