"""Numbers and verdicts in words, the same on the terminal and in the report."""

from __future__ import annotations

import textwrap

from fp4lab.report.summary import BASELINE, FAILED, Neighbours, Range, RecipeSummary, Summary

DASH = "–"


def number(value: float | None, digits: int = 4, *, sign: bool = False) -> str:
    """A fixed number of decimals, a dash for what does not exist."""
    return DASH if value is None else f"{value:{'+' if sign else ''}.{digits}f}"


def interval(value: Range | None, digits: int = 4) -> str:
    """`low to high`, or a dash."""
    return DASH if value is None else f"{value[0]:+.{digits}f} to {value[1]:+.{digits}f}"


def ratio(recipe: RecipeSummary) -> str:
    """The step time over the baseline's, with its quartiles."""
    if recipe.step_time_ratio is None or recipe.step_time_spread is None:
        return DASH
    low, high = recipe.step_time_spread
    return f"{recipe.step_time_ratio:.2f} ({low:.2f} to {high:.2f})"


def findings(summary: Summary) -> list[str]:
    """What was found, a sentence a recipe, a pair of neighbours and a run that failed."""
    sentences = []
    if summary.recipes[summary.baseline].verdict == FAILED:
        sentences = [f"The baseline {summary.baseline} failed, so there are no gaps."]
    sentences += [
        _recipe_finding(name, summary)
        for name in summary.order
        if name != summary.baseline and summary.recipes[name].verdict != FAILED
    ]
    pairs = [p for p in summary.neighbours if summary.baseline not in (p.better, p.worse)]
    sentences += [_pair_finding(pair) for pair in pairs]
    failed = [(name, failure) for name in summary.order for failure in summary.recipes[name].failed]
    return sentences + [f"{name}, seed {run.seed}, failed: {run.reason}" for name, run in failed]


def _recipe_finding(name: str, summary: Summary) -> str:
    recipe = summary.recipes[name]
    if recipe.gap is None:
        return f"{name} reached {number(recipe.val_loss)} nats; {recipe.verdict}."
    amount = f"{recipe.gap:+.4f} nats ({number(recipe.gap_percent, 2, sign=True)} %)"
    return f"{name} against {summary.baseline}: {amount}, {_sure(recipe.interval, recipe.verdict)}."


def _pair_finding(pair: Neighbours) -> str:
    if pair.gap is None:
        return f"{pair.worse} against {pair.better}: {pair.verdict}."
    return (
        f"{pair.worse} against {pair.better}: {pair.gap:+.4f} nats,"
        f" {_sure(pair.interval, pair.verdict)}."
    )


def _sure(value: Range | None, verdict: str) -> str:
    return f"{verdict} (interval {interval(value)})" if value else verdict


def verdict(recipe: RecipeSummary) -> str:
    """The verdict, and of a recipe that failed the beginning of the reason."""
    if recipe.verdict != FAILED:
        return recipe.verdict
    return textwrap.shorten(f"{FAILED}: {recipe.failed[0].reason}", 48, placeholder=" ...")


def seeds(recipe: RecipeSummary) -> str:
    """How many seeds stand behind the numbers, and how many failed."""
    failed = f" ({len(recipe.failed)} failed)" if recipe.failed else ""
    return f"{recipe.seeds}{failed}"


def is_baseline(recipe: RecipeSummary) -> bool:
    """Whether this is the recipe the others are held against."""
    return recipe.verdict == BASELINE
