"""From finished runs to the files that a comparison leaves: summary, errors, times, report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.console import Console

from fp4lab import report
from fp4lab.report.differences import read_run, warnings
from fp4lab.report.folder import ERRORS, SUMMARY, ComparisonRecord, write_errors
from fp4lab.report.summary import Failure
from fp4lab.specs.files import read_record, write_json
from fp4lab.studies.child import Job
from fp4lab.studies.plan import Comparison, Plan
from fp4lab.studies.run import Measures, RecipeRun, read_finished
from fp4lab.studies.summarize import Finished, summarize
from fp4lab.studies.timing import StepTime, expected_seconds, time_recipes
from fp4lab.train.folder import RESULT, FitResult

TIMING = "timing.json"


@dataclass(frozen=True)
class _Timing:
    """What timing.json holds: the hashes of the recipes that were timed, and their times."""

    recipes: dict[str, str]
    times: dict[str, StepTime]


def is_done(job: Job) -> bool:
    """Whether the job's folder holds its finished run."""
    assert isinstance(job.work, RecipeRun)
    return job.work.is_done(job.folder)


def finish(
    plan: Plan,
    jobs: Mapping[tuple[str, int], Job],
    failures: Mapping[str, str],
    console: Console,
) -> Comparison:
    """Collect the results, time the recipes and write everything into the folder."""
    runs: dict[str, dict[int, Finished | Failure]] = {name: {} for name in plan.recipes}
    for (name, seed), job in jobs.items():
        reason, task = failures.get(job.name), plan.tasks[seed]
        runs[name][seed] = Failure(seed, reason) if reason else read_finished(job.folder, task)
    done = {name: [seed for seed, run in runs[name].items() if isinstance(run, Finished)]
            for name in runs}  # fmt: skip
    errors = {
        name: Measures.read(jobs[name, seeds[0]].folder).errors
        for name, seeds in done.items()
        if seeds
    }
    baseline = plan.recipes[plan.baseline]
    summary = summarize(
        runs,
        plan.baseline,
        confidence=plan.confidence,
        times=_times(plan, jobs, done, console),
        diffs={
            name: str(recipe) if name == plan.baseline else baseline.diff(recipe)
            for name, recipe in plan.recipes.items()
        },
        notes=plan.notes,
    )
    finished = [jobs[name, seed] for name in done for seed in done[name]]
    made = {job.name: read_run(job.folder) for job in finished}
    summary = dataclasses.replace(summary, warnings=tuple(warnings(made)))
    _add_end(plan, finished)
    write_errors(plan.folder / ERRORS, errors)
    summary.write(plan.folder / SUMMARY)
    report.write(plan.folder)
    return Comparison(plan.folder, summary, errors)


def _times(
    plan: Plan,
    jobs: Mapping[tuple[str, int], Job],
    done: Mapping[str, list[int]],
    console: Console,
) -> dict[str, StepTime]:
    """The step times of the recipes that finished; measured again only if the recipes changed."""
    names = [name for name in done if done[name]]
    if plan.baseline not in names:
        return {}
    path = plan.folder / TIMING
    what = {name: plan.recipes[name].hash for name in [plan.baseline, *names]}
    if path.is_file():
        old = read_record(path, _Timing, cure="delete it, and the times are taken again")
        if old.recipes == what:
            return old.times
    seconds = expected_seconds(sum(_median_step(jobs[name, done[name][0]]) for name in what))
    console.print(f"timing the recipes in turn, for about {seconds:.0f} s", highlight=False)
    work = jobs[plan.baseline, next(iter(plan.tasks))].work
    assert isinstance(work, RecipeRun)
    recipes = {name: plan.recipes[name] for name in what}
    times = time_recipes(work.task, recipes, plan.baseline, work.config)
    write_json(path, dataclasses.asdict(_Timing(what, times)))
    return times


def _median_step(job: Job) -> float:
    result = FitResult.load(job.folder)
    return (result and result.step_time_median) or 0.0


def _add_end(plan: Plan, finished: list[Job]) -> None:
    """Tell the report when the last run ended."""
    if finished:
        record = ComparisonRecord.read(plan.folder)
        last = max((job.folder / RESULT).stat().st_mtime for job in finished)
        end = f"{datetime.fromtimestamp(last, UTC):%Y-%m-%d %H:%M} UTC"
        training = record.facts.get("Training", {}) | {"finished": end}
        facts = record.facts | {"Training": training}
        dataclasses.replace(record, facts=facts).write(plan.folder)
