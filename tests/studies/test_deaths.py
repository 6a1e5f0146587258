"""kill -9 while a comparison writes any of its files: it goes on to the same numbers."""

from __future__ import annotations

import dataclasses
import multiprocessing
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
from study_fakes import compare_and_die, compare_here

from fp4lab.report.summary import Summary
from fp4lab.studies import Comparison

pytestmark = pytest.mark.usefixtures("few_rounds")


@pytest.fixture(autouse=True)
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than training here."""
    monkeypatch.setattr("fp4lab.report.write", lambda folder: folder)


def untimed(found: Comparison) -> Summary:
    recipes = {
        name: dataclasses.replace(recipe, step_time_ratio=None, step_time_spread=None)
        for name, recipe in found.summary.recipes.items()
    }
    return dataclasses.replace(found.summary, recipes=recipes)


def check_deaths(tmp_path: Path, moments: Iterable[int]) -> int | None:
    """Kill at each moment a comparison that never was killed; the first moment not reached."""
    whole = compare_here(tmp_path / "whole")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "fp4lab.studies", "fp4lab.nn"])
    for moment in moments:
        folder = tmp_path / f"cut{moment}"
        process = context.Process(target=compare_and_die, args=(folder, moment))
        process.start()
        process.join()
        if process.exitcode == 0:
            return moment
        assert process.exitcode == -signal.SIGKILL
        resumed = compare_here(folder)
        assert untimed(resumed) == untimed(whole)
        assert resumed.errors == whole.errors
        assert not list(folder.rglob("*.tmp"))
    return None


def test_a_death_before_there_is_a_comparison_or_while_it_measures(tmp_path: Path) -> None:
    # comparison.json 1, 2; a run writes five small files, a checkpoint of 8, the result 21, 22
    # and its measures 23, 24.
    assert check_deaths(tmp_path, (1, 23)) is None


@pytest.mark.slow
def test_a_death_at_any_moment(tmp_path: Path) -> None:
    # comparison.json, and a run: five small files, a checkpoint, the result and its measures
    first = 2 + 2 * 5 + 8 + 2 * 2
    # the second run's files are those of the first: of its moments every fourth
    moments = [*range(1, first + 1), *range(first + 1, 2 * first - 1, 4), *range(2 * first - 1, 99)]
    # then comparison.json again, times, errors, summary and report
    assert check_deaths(tmp_path, moments) == 2 * first - 2 + 2 + 4 * 2 + 1
