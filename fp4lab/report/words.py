"""Numbers and verdicts in words, the same on the terminal and in the report."""

from __future__ import annotations

from fp4lab.report.summary import (
    BASELINE,
    DIVERGED,
    FAILED,
    Neighbours,
    Range,
    RecipeSummary,
    Summary,
)

DASH = "–"
DIFFERENT = "The runs differ in more than recipe and seed, which may have its part in a gap:"


def number(value: float | None, digits: int = 4, *, sign: bool = False) -> str:
    """A fixed number of decimals, a dash for what does not exist."""
    return DASH if value is None else f"{value:{'+' if sign else ''}.{digits}f}"


def scientific(value: float | None) -> str:
    """Four digits and a power of ten, a dash for what does not exist."""
    return DASH if value is None else f"{value:.3e}"


def interval(value: Range | None, digits: int = 4) -> str:
    """`low to high`, or a dash."""
    return DASH if value is None else f"{value[0]:+.{digits}f} to {value[1]:+.{digits}f}"


def gap(recipe: RecipeSummary) -> float | None:
    """The gap in nats; None for the baseline, whose gap says nothing."""
    return None if is_baseline(recipe) else recipe.gap


def gap_percent(recipe: RecipeSummary) -> float | None:
    """The gap in percent, as `gap`."""
    return None if is_baseline(recipe) else recipe.gap_percent


def level(summary: Summary) -> str:
    """The confidence of the intervals."""
    return f"{100 * summary.confidence:g} %"


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
    if summary.recipes[summary.baseline].diverged:
        sentences = [f"The baseline {summary.baseline} diverged, so the gaps to it say nothing."]
    sentences += [
        _recipe_finding(name, summary)
        for name in summary.order
        if name != summary.baseline and summary.recipes[name].verdict != FAILED
    ]
    pairs = [p for p in summary.neighbours if summary.baseline not in (p.better, p.worse)]
    sentences += [_pair_finding(pair) for pair in pairs]
    failed = [(name, failure) for name in summary.order for failure in summary.recipes[name].failed]
    sentences += [f"{name}, seed {run.seed}, failed: {run.reason}" for name, run in failed]
    return sentences + _how_sure(summary)


def warnings(summary: Summary) -> list[str]:
    """What the runs differ in and should share, in lines."""
    return [DIFFERENT, *(f"  {line}" for line in summary.warnings)] if summary.warnings else []


def _recipe_finding(name: str, summary: Summary) -> str:
    recipe = summary.recipes[name]
    if recipe.gap is None:
        return f"{name} reached {number(recipe.val_loss)} nats; {recipe.verdict}."
    amount = f"{recipe.gap:+.4f} nats ({number(recipe.gap_percent, 2, sign=True)} %)"
    sure = _sure(recipe.interval, recipe.verdict)
    return f"{name} against {summary.baseline}: {amount}, {sure}{_spread(recipe.gap, summary)}."


def _spread(gap: float, summary: Summary) -> str:
    """Whether a gap is larger than what another seed of the baseline makes."""
    if summary.spread is None:
        return ""
    larger = "larger" if abs(gap) > summary.spread else "not larger"
    return (
        f"; {larger} than the spread of {summary.baseline} between seeds"
        f" (standard deviation {summary.spread:.4f})"
    )


def _how_sure(summary: Summary) -> list[str]:
    """What too few seeds mean."""
    compared = [r for r in summary.recipes.values() if not is_baseline(r) and r.gap is not None]
    pairs = max((recipe.seeds for recipe in compared), default=0)
    if pairs == 1:
        nothing = "neither an interval nor a spread between seeds"
        missing = nothing if summary.spread is None else "no interval"
        return [f"One seed: {missing}; 3 or more are needed."]
    if pairs == 2:
        from scipy.special import stdtrit

        factor = stdtrit(1, (1 + summary.confidence) / 2)
        return [
            f"Two seeds: the interval rests on one degree of freedom (t factor {factor:.1f});"
            " 3 or more are needed."
        ]
    return []


def _pair_finding(pair: Neighbours) -> str:
    if pair.gap is None:
        return f"{pair.worse} against {pair.better}: {pair.verdict}."
    return (
        f"{pair.worse} against {pair.better}: {pair.gap:+.4f} nats,"
        f" {_sure(pair.interval, pair.verdict)}."
    )


def _sure(value: Range | None, verdict: str) -> str:
    return f"{verdict} (interval {interval(value)})" if value else verdict


def seeds(recipe: RecipeSummary) -> str:
    """How many seeds stand behind the numbers, and how many diverged or failed."""
    bad = {DIVERGED: len(recipe.diverged), FAILED: len(recipe.failed)}
    counts = ", ".join(f"{count} {what}" for what, count in bad.items() if count)
    return f"{recipe.seeds} ({counts})" if counts else f"{recipe.seeds}"


def is_baseline(recipe: RecipeSummary) -> bool:
    """Whether this is the recipe the others are held against."""
    return recipe.verdict == BASELINE
