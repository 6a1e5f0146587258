"""The report: one HTML file that needs nothing else, and the figures as PNG files beside it.

It is drawn from the files of the comparison's folder alone, so it can be drawn again later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fp4lab.instruments.error_rows import LayerErrors, ProductError
from fp4lab.recipes.places import GEMMS
from fp4lab.report import style, words
from fp4lab.report.drawings import NAMES, Drawing, drawings
from fp4lab.report.folder import FIGURES, REPORT, Findings, read_findings
from fp4lab.report.opening import opening, unreached
from fp4lab.report.summary import Summary
from fp4lab.report.svg import inline_svg
from fp4lab.train.files import naming, write_text

PNG_DPI = 150
DIFF_LINES = 8


def write(folder: Path) -> Path:
    """Write `report.html` and `figures/*.png` into a comparison's folder.

    A figure of an earlier report that this one has not is removed. Returns the path of the report.
    InputError where the folder holds no finished comparison.
    """
    found = read_findings(folder)
    figures = folder / FIGURES
    figures.mkdir(exist_ok=True)
    shown = list(drawings(found))
    for name in set(NAMES) - {drawing.name for drawing in shown}:
        _png(figures, name).unlink(missing_ok=True)
    for drawing in shown:
        path = _png(figures, drawing.name)
        with naming(path):
            drawing.figure.savefig(path, dpi=PNG_DPI, facecolor=style.LIGHT)
    report = folder / REPORT
    write_text(report, render(found, shown))
    return report


def _png(figures: Path, name: str) -> Path:
    return figures / f"{name}.png"


def render(found: Findings, shown: list[Drawing]) -> str:
    """The page as text."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fp4lab.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    summary = found.summary
    return environment.get_template("report.html.j2").render(
        summary=summary,
        words=words,
        level=words.level(summary),
        opening=opening(found),
        unreached=unreached(found.conversions),
        where=found.facts.get("Training", {}).get("device", "this device"),
        seeds=found.seeds,
        recipes=found.recipes,
        conversions=found.conversions,
        diffs=short_diffs(summary),
        has_bits=any(r.bits_per_byte is not None for r in summary.recipes.values()),
        findings=words.findings(summary),
        failures=[(name, f) for name in summary.order for f in summary.recipes[name].failed],
        drawings=[
            {
                "name": d.name,
                "title": d.title,
                "caption": d.caption,
                "svg": inline_svg(d.figure, d.name, d.alt),
            }
            for d in shown
        ],
        errors=found.errors,
        digest=digest(found.errors),
        facts=found.facts,
        light=style.LIGHT,
        dark=style.DARK,
        ink=style.INK,
    )


def short_diffs(summary: Summary) -> dict[str, str]:
    """Of each recipe, how it differs from the baseline, where that is short enough to read."""
    return {
        name: recipe.diff
        for name, recipe in summary.recipes.items()
        if name != summary.baseline and len(recipe.diff.splitlines()) <= DIFF_LINES
    }


@dataclass(frozen=True)
class Digest:
    """One product (Y, dX or dW) of one recipe over all layers."""

    recipe: str
    product: str
    sqnr_db: float | None
    lowest_db: float | None
    layer: str
    cosine: float | None
    gain: float | None


def digest(errors: Mapping[str, LayerErrors]) -> list[Digest]:
    """Medians over the layers, and the layer with the lowest SQNR."""
    return [
        _digest(name, product, [row for row in found.products if row.product == product])
        for name, found in errors.items()
        for product in GEMMS.values()
        if any(row.product == product for row in found.products)
    ]


def _digest(name: str, product: str, rows: list[ProductError]) -> Digest:
    noisy = {row.layer: row.sqnr_db for row in rows if row.sqnr_db is not None}
    worst = min(noisy, key=noisy.__getitem__) if noisy else ""
    return Digest(
        recipe=name,
        product=product,
        sqnr_db=_median(list(noisy.values())),
        lowest_db=noisy.get(worst),
        layer=worst,
        cosine=_median([row.cosine for row in rows if row.cosine is not None]),
        gain=_median([row.gain for row in rows if row.gain is not None]),
    )


def _median(values: list[float]) -> float | None:
    return median(values) if values else None
