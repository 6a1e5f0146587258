"""The comparison as a table for the terminal.

No number and no verdict is ever cut: where the columns do not fit, the least important are left
out, then verdicts are folded between words, and at last the table is wider than asked.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from fp4lab.report import words
from fp4lab.report.summary import RecipeSummary, Summary

Cell = Callable[[RecipeSummary], str]
#: the optional columns, the first to go first
EXPENDABLE = ("seeds", "gap (%)", "step time", "interval")
#: wide enough for any table
WIDEST = 10_000


def table(summary: Summary, width: int = WIDEST) -> Table:
    """One row a recipe, best first, failed ones last, in at most `width` characters if possible."""
    columns = _columns(summary)
    for dropped in ("", *EXPENDABLE):
        columns.pop(dropped, None)
        whole = _table(summary, columns, fold=False)
        if needed(whole) <= width:
            return whole
    verdicts = ["verdict", *(recipe.verdict for recipe in summary.recipes.values())]
    word = max(len(word) for verdict in verdicts for word in verdict.split())
    folded = _table(summary, columns, fold=True)
    folded.width = max(width, needed(whole) - max(map(len, verdicts)) + word)
    return folded


def needed(shown: Table) -> int:
    """The characters of its widest line."""
    return Console(width=WIDEST).measure(shown).maximum


def show(summary: Summary) -> None:
    """Print the table, fitted where there is a terminal, and below it the findings, a line each.

    Above it stands what the runs differ in that they should share.
    """
    for line in words.warnings(summary):
        print(line)
    console = Console()
    fitted = table(summary, console.width if console.is_terminal else WIDEST)
    console.width = max(console.width, needed(fitted))
    console.print(fitted)
    for sentence in words.findings(summary):
        print(sentence)


def _columns(summary: Summary) -> dict[str, tuple[str, Cell]]:
    """Heading and content of each column."""
    columns: dict[str, tuple[str, Cell]] = {
        "loss": ("loss", lambda r: words.number(r.val_loss)),
        "gap": ("gap (nats)", lambda r: words.number(words.gap(r), sign=True)),
        "interval": (f"{words.level(summary)} interval", lambda r: words.interval(r.interval)),
        "gap (%)": ("gap (%)", lambda r: words.number(words.gap_percent(r), 2, sign=True)),
        "seeds": ("seeds", words.seeds),
        "step time": ("step time", lambda r: words.number(r.step_time_ratio, 2)),
    }
    if not any(recipe.interval for recipe in summary.recipes.values()):
        del columns["interval"]
    if not any(recipe.step_time_ratio for recipe in summary.recipes.values()):
        del columns["step time"]
    return columns


def _table(summary: Summary, columns: dict[str, tuple[str, Cell]], *, fold: bool) -> Table:
    shown = Table(title=f"validation loss against {summary.baseline}", title_justify="left")
    if "step time" in columns:
        shown.caption = (
            f"step time over {summary.baseline}'s: of the emulation, not of 4-bit hardware"
        )
        shown.caption_justify = "left"
    shown.add_column("recipe", no_wrap=True)
    for heading, _ in columns.values():
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("verdict", no_wrap=not fold)
    for name in summary.order:
        recipe = summary.recipes[name]
        shown.add_row(name, *(cell(recipe) for _, cell in columns.values()), recipe.verdict)
    return shown
