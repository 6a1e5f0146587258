"""The comparison as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from fp4lab.report import words
from fp4lab.report.summary import Summary


def table(summary: Summary) -> Table:
    """One row a recipe, best first, failed ones last."""
    level = f"{100 * summary.confidence:g} %"
    shown = Table(title=f"validation loss against {summary.baseline}", title_justify="left")
    shown.add_column("recipe", no_wrap=True)
    for heading in ("loss", "gap (nats)", "gap (%)", f"{level} interval", "seeds", "step time"):
        shown.add_column(heading, justify="right")
    shown.add_column("verdict")
    for name in summary.order:
        recipe = summary.recipes[name]
        gap, percent = recipe.gap, recipe.gap_percent
        if words.is_baseline(recipe):
            gap = percent = None
        shown.add_row(
            name,
            words.number(recipe.val_loss),
            words.number(gap, sign=True),
            words.number(percent, 2, sign=True),
            words.interval(recipe.interval),
            words.seeds(recipe),
            "1" if words.is_baseline(recipe) and recipe.step_time_ratio else words.ratio(recipe),
            recipe.verdict,
        )
    return shown
