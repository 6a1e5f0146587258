"""The comparison as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from fp4lab.report import words
from fp4lab.report.summary import Summary


def table(summary: Summary) -> Table:
    """One row a recipe, best first, failed ones last."""
    has_intervals = any(recipe.interval for recipe in summary.recipes.values())
    shown = Table(title=f"validation loss against {summary.baseline}", title_justify="left")
    shown.add_column("recipe", no_wrap=True)
    headings = ["loss", "gap (nats)", "gap (%)", "seeds", "step time"]
    if has_intervals:
        headings.insert(3, f"{100 * summary.confidence:g} % interval")
    for heading in headings:
        shown.add_column(heading, justify="right")
    shown.add_column("verdict")
    for name in summary.order:
        recipe = summary.recipes[name]
        gap, percent = recipe.gap, recipe.gap_percent
        if words.is_baseline(recipe):
            gap = percent = None
        cells = [
            words.number(recipe.val_loss),
            words.number(gap, sign=True),
            words.number(percent, 2, sign=True),
            words.seeds(recipe),
            words.number(recipe.step_time_ratio, 2),
        ]
        if has_intervals:
            cells.insert(3, words.interval(recipe.interval))
        shown.add_row(name, *cells, words.verdict(recipe))
    return shown
