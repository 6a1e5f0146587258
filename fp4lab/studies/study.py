"""The engine under every comparison: plan the runs, run them, measure, write what was found.

    OUT/comparison.json   what is compared; a rerun with other settings is refused
    OUT/runs/<recipe>-seed<k>/   a run each, as `fp4lab.train` writes it
    OUT/logs/             what each run printed
    OUT/timing.json       the step-time pass
    OUT/summary.json, errors.json, report.html

Everything is kept in the folder, so an interrupted comparison goes on where it was: finished runs
are used again, unfinished ones continue from their checkpoints, failed ones are tried again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fp4lab.kernels.native import library
from fp4lab.report.folder import LOGS, RUNS, run_folder
from fp4lab.specs.lock import only_one
from fp4lab.studies.child import Job, unpicklable
from fp4lab.studies.plan import Comparison, Plan
from fp4lab.studies.progress import RunsProgress
from fp4lab.studies.results import finish, is_done
from fp4lab.studies.run import RecipeRun
from fp4lab.studies.runner import run_here, run_jobs
from fp4lab.studies.study_folder import open_folder
from fp4lab.train.config import RunConfig


def run_study(plan: Plan, *, console: Console) -> Comparison:
    """Run what is missing and write the results; see the head of this file.

    Raises InputError for a folder that holds something else or a comparison with other settings,
    and KeyboardInterrupt after ending its runs.
    """
    with only_one(plan.folder, argument="out", user="a comparison"):
        threads = open_folder(plan, console)
        jobs = _jobs(plan, threads)
        _tell_of_others(plan, {job.folder for job in jobs.values()}, console)
        failures = _run(plan, list(jobs.values()), console)
        return finish(plan, jobs, failures, console)


def _jobs(plan: Plan, threads: int) -> dict[tuple[str, int], Job]:
    """Seed by seed, so that a comparison cut short has whole pairs."""
    jobs = {}
    for seed, task in plan.tasks.items():
        for name, recipe in plan.recipes.items():
            group = plan.config.wandb_group or plan.folder.resolve().name
            config = dataclasses.replace(plan.config, seed=seed, threads=threads, wandb_group=group)
            if isinstance(config, RunConfig):  # so that the run's folder can be used by itself
                config = dataclasses.replace(config, recipe=name)
            folder = run_folder(plan.folder, name, seed)
            log = plan.folder / LOGS / f"{folder.name}.txt"
            work = RecipeRun(task, recipe, config)
            jobs[name, seed] = Job(folder.name, folder, log, work, config.steps, threads)
    return jobs


def _tell_of_others(plan: Plan, ours: set[Path], console: Console) -> None:
    """What a report leaves out that lies beside it: runs of an earlier call for more."""
    others = sorted(folder.name for folder in (plan.folder / RUNS).glob("*") if folder not in ours)
    if others:
        console.print(
            f"{plan.folder} holds {len(others)} more, which this report leaves out: "
            f"{', '.join(others)}; name their recipes and seeds to have them in it",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _run(plan: Plan, jobs: Sequence[Job], console: Console) -> dict[str, str]:
    """Do what is not done; the reasons of the runs that failed."""
    missing = [job for job in jobs if not is_done(job)]
    if len(missing) < len(jobs):
        console.print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are finished already")
    if not missing:
        return {}
    # compiled, if need be, once and where it is seen, not by each run into its log
    library.load()
    obstacle = unpicklable([job.work for job in missing])
    parallel = plan.parallel if obstacle is None else 1
    with RunsProgress(missing, parallel=parallel, console=console) as progress:
        if obstacle is not None:
            progress.say(f"one run after another in this process: {obstacle}")
            outcomes = run_here(missing, watch=progress)
        else:
            outcomes = run_jobs(missing, parallel=parallel, watch=progress)
    return {name: reason for name, reason in outcomes.items() if reason is not None}
