"""The report: one HTML file that needs nothing else.

It is drawn from the files of the comparison's folder alone, so it can be drawn again later.
"""

from __future__ import annotations

from pathlib import Path

from fp4lab.report import style, words
from fp4lab.report.differences import shared
from fp4lab.report.digest import digest
from fp4lab.report.drawings import Drawing, drawings
from fp4lab.report.folder import REPORT, Findings, read_findings
from fp4lab.report.opening import opening, unreached
from fp4lab.report.summary import Summary
from fp4lab.report.svg import inline_svg
from fp4lab.specs.files import write_text

DIFF_LINES = 8
#: the section of the facts that says which settings were chosen
CHOSEN = "Settings other than the defaults"


def write(folder: Path) -> Path:
    """Write `report.html` into a comparison's folder; returns its path.

    InputError where the folder holds no finished comparison.
    """
    found = read_findings(folder)
    report = folder / REPORT
    write_text(report, render(found, list(drawings(found))))
    return report


def render(found: Findings, shown: list[Drawing]) -> str:
    """The page as text."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fp4lab.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    summary = found.summary
    return environment.get_template("report.html.j2").render(
        summary=summary,
        words=words,
        level=words.level(summary),
        opening=opening(found),
        unreached=unreached(found),
        where=found.facts.get("Training", {}).get("device", "this device"),
        seeds=found.seeds,
        seed_columns=[f"seed\u00a0{seed}" for seed in found.seeds],
        recipes=found.recipes,
        conversions=found.conversions,
        diffs=short_diffs(summary),
        has_bits=any(r.bits_per_byte is not None for r in summary.recipes.values()),
        findings=words.findings(summary),
        failures=[(name, f) for name in summary.order for f in summary.recipes[name].failed],
        drawings=[(d, inline_svg(d.figure, d.name, title=d.title, alt=d.alt)) for d in shown],
        errors=found.errors,
        digest=digest(found.errors),
        runs=len(found.runs),
        same=same(found),
        light=style.LIGHT,
        dark=style.DARK,
    )


def short_diffs(summary: Summary) -> dict[str, str]:
    """Of each recipe, how it differs from the baseline, where that is short enough to read."""
    return {
        name: recipe.diff
        for name, recipe in summary.recipes.items()
        if name != summary.baseline and len(recipe.diff.splitlines()) <= DIFF_LINES
    }


def same(found: Findings) -> dict[str, dict[str, str]]:
    """What is the same for all runs, section by section: the facts, and what their folders add."""
    sections = {title: dict(facts) for title, facts in found.facts.items()}
    told = {*sections.get(CHOSEN, {}), *sections.get("Training", {})}
    for (part, name), text in shared(found.runs).items():
        if part == "environment":
            sections.setdefault("Environment", {})[name] = text
        elif part == "config" and name not in told:
            sections.setdefault("Other settings", {})[name] = text
    return sections
