"""A comparison's folder: whose it is, and whether it may go on there."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from fp4lab.errors import InputError
from fp4lab.report.folder import COMPARISON, LOGS, ComparisonRecord
from fp4lab.specs.files import remove_leftovers, strangers
from fp4lab.specs.lock import LOCK
from fp4lab.studies.plan import Plan


def open_folder(plan: Plan, console: Console) -> int:
    """Begin or continue a comparison in `plan.folder`; returns the threads of a run.

    Recipes and seeds may be added later. The threads stay those of the first call, as the bits of a
    run depend on them. Half-written files that a death left are deleted.

    Raises InputError for a folder with anything else in it, or with other settings.
    """
    hashes = {name: recipe.hash for name, recipe in plan.recipes.items()}
    threads = plan.config.threads
    if (plan.folder / COMPARISON).is_file():
        old = ComparisonRecord.read(plan.folder)
        _refuse_changes(plan, hashes, old)
        hashes = {**old.recipes, **hashes}
        if old.threads != threads:
            threads = old.threads
            console.print(
                f"threads of a run stay at {threads}, with which {plan.folder} began",
                soft_wrap=True,
            )
    elif others := strangers(plan.folder, {LOCK, COMPARISON}):
        raise InputError(
            f"out={plan.folder} holds {others[0]!r} and no comparison; give a new or empty folder"
        )
    for folder in (plan.folder, plan.folder / LOGS):
        remove_leftovers(folder)
    ComparisonRecord(
        settings=dict(plan.settings),
        recipes=hashes,
        threads=threads,
        facts={title: dict(facts) for title, facts in plan.facts.items()},
    ).write(plan.folder)
    return threads


def _refuse_changes(plan: Plan, hashes: dict[str, str], old: ComparisonRecord) -> None:
    before, now = dict(old.settings), dict(plan.settings)
    before |= {f"recipe {name}": digest for name, digest in old.recipes.items()}
    now |= {f"recipe {name}": digest for name, digest in hashes.items()}
    optional = {key for key in before.keys() ^ now.keys() if key.startswith("recipe ")}
    changed = [
        f"{key} ({_short(before.get(key))}, now {_short(now.get(key))})"
        for key in sorted((before.keys() | now.keys()) - optional)
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise InputError(
            f"out={plan.folder} holds a comparison that differs in {', '.join(changed)};"
            " give another folder, or the old values (the last bits of losses differ under another"
            " torch or on another CPU)"
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 24 else f"{text[:20]}...{text[-1]}"
