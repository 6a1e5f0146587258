"""Compare recipes: `compare` for a user's own module and data, `compare_runs` for a GPT on text.

Both train the same thing under every recipe, from the same initial weights, on the same batches in
the same order, and report what the others lose to the baseline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from torch import nn

from fp4lab.errors import InputError, expect
from fp4lab.recipes import Recipe, find
from fp4lab.studies.child import end_unguarded_child
from fp4lab.studies.facts import module_facts, run_facts, settings, tokens_of
from fp4lab.studies.plan import Comparison, Plan
from fp4lab.studies.progress import messages
from fp4lab.studies.study import run_study
from fp4lab.studies.tasks import Batches, Loss, cross_entropy, first_look, user_task
from fp4lab.train.config import FitConfig, RunConfig
from fp4lab.train.preflight import check_language
from fp4lab.train.task import LanguageTask

#: below this many training tokens a parameter, recipes cannot be told apart at small scale
TOKENS_PER_PARAMETER = 25


def compare(
    build_model: Callable[[], nn.Module],
    batches: Batches,
    recipes: Sequence[str | Recipe],
    *,
    validation: Batches | None = None,
    loss: Loss = cross_entropy,
    baseline: str | None = None,
    seeds: int = 1,
    steps: int | None = None,
    learning_rate: float | None = None,
    ragged: Literal["error", "pad"] | None = None,
    config: FitConfig | None = None,
    out: str | Path = "runs/compare",
    jobs: int | None = None,
    confidence: float = 0.95,
    console: Console | None = None,
) -> Comparison:
    """Train a module of your own under several recipes and report the gaps.

    Args:
        build_model: gives a new module; called after `torch.manual_seed(seed)`, so every recipe
            starts from the same weights.
        batches: training batch of an index >= 0, as a function, or a sequence that is gone through
            again and again. Seeds share it: they differ in initial weights and rounding noise.
        recipes: names, paths of TOML files, or recipes.
        validation: held-out batches: a sequence, or a function, of which the first 8 are used. None
            holds out the last tenth of a sequence, or takes the 8 batches that follow the last one
            trained on from a function.
        loss: `loss(model, batch)`, a mean in nats; the default is `cross_entropy` of
            `(inputs, targets)`.
        baseline: name of the recipe that others are held against; None: the first.
        seeds: runs of each recipe; two or more give confidence intervals.
        steps: updates of the weights; overrides `config` (2,050).
        learning_rate: peak of the learning rate; overrides `config`.
        ragged: "pad" completes blocks with zeros; overrides `config`. Else the features of every
            layer and the tokens of a batch must fill blocks: multiples of 16 under nvfp4, of 32
            under mxfp4.
        config: everything else about training.
        out: folder of the results; an interrupted comparison goes on there.
        jobs: runs at a time; None: one a core. What cannot be sent to another process, such as a
            function defined in a notebook, runs here, one after another.
        confidence: of the intervals.
        console: where progress is shown; None: stderr.

    Raises:
        InputError: unknown recipes or one that cannot train the model on the first batch, batches
            of the wrong kind or that differ from call to call, a device that is not there; nothing
            is written then. A folder that holds something else, such as a comparison of another
            model, loss or data. A baseline of which no run finished, with the reason.

    In a script, call it under `if __name__ == "__main__":`, as its runs are new processes.

    >>> def batch(index):
    ...     x = torch.randn(64, 32, generator=torch.Generator().manual_seed(index))
    ...     return x, x.argmax(dim=1)
    >>> found = compare(lambda: nn.Linear(32, 32), batch, ["bf16", "mxfp4"])  # doctest: +SKIP
    >>> found.summary.recipes["mxfp4"].gap_percent  # doctest: +SKIP
    """
    end_unguarded_child()
    config = _overridden(config or FitConfig(), steps, learning_rate, ragged)
    table = _recipes(recipes)
    task = user_task(
        build_model,
        batches,
        validation,
        loss=loss,
        training_batches=config.steps * config.microbatches,
    )
    plan = Plan(
        tasks=dict.fromkeys(_seeds(config, seeds), task),
        recipes=table,
        baseline=baseline or next(iter(table)),
        config=config,
        folder=Path(out),
        settings=settings(config),
        facts={},
        jobs=jobs,
        confidence=confidence,
    )
    model, known_by = first_look(task, table, config)
    plan = dataclasses.replace(
        plan, settings={**plan.settings, **known_by}, facts=module_facts(model, config)
    )
    console = console or messages()
    found = run_study(plan, console=console)
    baseline_runs = found.summary.recipes[plan.baseline]
    if not baseline_runs.val_losses:
        finished = any(recipe.val_losses for recipe in found.summary.recipes.values())
        kept = f"; what finished is in {found.report}" if finished else ""
        raise InputError(
            f"baseline={plan.baseline!r} failed, so nothing can be compared; seed "
            f"{baseline_runs.failed[0].seed}: {baseline_runs.failed[0].reason}; mend that and call "
            f"again, or name another baseline{kept}"
        )
    console.print(f"report: {found.report}", highlight=False, markup=False, soft_wrap=True)
    return found


def compare_runs(
    run: RunConfig,
    recipes: Sequence[str | Recipe],
    *,
    baseline: str | None = None,
    seeds: int = 1,
    out: str | Path = "runs/compare",
    jobs: int | None = None,
    confidence: float = 0.95,
    console: Console | None = None,
    command: str = "",
) -> Comparison:
    """Train the GPT of a config under several recipes and report the gaps.

    Args:
        run: model, text and training; its recipe is not used.
        recipes: and everything else as for `compare`; seeds differ in the order of the data, too.
        command: the command line that repeats this, for the report.

    Raises:
        InputError: as `compare`, but for a baseline that failed: the summary tells that.
    """
    end_unguarded_child()
    table = _recipes(recipes)
    tasks = {
        seed: LanguageTask.from_config(dataclasses.replace(run, seed=seed))
        for seed in _seeds(run, seeds)
    }
    task = tasks[run.seed]
    model = check_language(task, table, run)
    size = model.num_parameters(embedding=False)
    ratio = tokens_of(run) / size
    note = f"Every run sees {ratio:.1f} tokens for each of {size:,} parameters (embeddings apart)."
    if ratio < TOKENS_PER_PARAMETER:
        note += (
            f" That is below {TOKENS_PER_PARAMETER}: recipes can hardly be told apart so early;"
            " give more steps."
        )
    plan = Plan(
        tasks=tasks,
        recipes=table,
        baseline=baseline or next(iter(table)),
        config=run,
        folder=Path(out),
        settings=settings(run) | {"data.sha256": task.identity()["sha256"]},
        facts=run_facts(model, run, task) | ({"Command": {"repeat": command}} if command else {}),
        jobs=jobs,
        confidence=confidence,
        notes=(note,),
    )
    console = console or messages()
    console.print(note, highlight=False, soft_wrap=True)
    return run_study(plan, console=console)


def _overridden(
    config: FitConfig,
    steps: int | None,
    learning_rate: float | None,
    ragged: Literal["error", "pad"] | None,
) -> FitConfig:
    if steps is not None:
        config = dataclasses.replace(config, steps=steps)
    if ragged is not None:
        config = dataclasses.replace(config, ragged=ragged)
    if learning_rate is not None:
        optim = dataclasses.replace(config.optim, learning_rate=learning_rate)
        config = dataclasses.replace(config, optim=optim)
    return config


def _recipes(chosen: Sequence[str | Recipe]) -> dict[str, Recipe]:
    if isinstance(chosen, str):
        names = [name.strip() for name in chosen.split(",")]
        raise InputError(f"recipes={chosen!r} is one string; give a list, such as {names}")
    found = [find(each) if isinstance(each, str) else each for each in chosen]
    for each in found:
        cure = "give its name, a recipe, or the name of a format from formats.register(fmt)"
        expect("recipes", each, Recipe, cure)
    names = [recipe.name for recipe in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"recipes has {name!r} twice; give each a name of its own")
        if not name.isprintable() or set(name) & set('/\\:*?"<>|') or name.startswith("."):
            raise InputError(f"recipes has {name!r}, which cannot name a folder; rename it")
    if len(found) < 2:
        other = "nvfp4" if names == ["bf16"] else "bf16"
        raise InputError(
            f"recipes={','.join(names)!r} leaves nothing to compare; give two or more, add {other}"
        )
    return dict(zip(names, found, strict=True))


def _seeds(config: FitConfig, count: int) -> range:
    if count < 1:
        raise InputError(f"seeds={count} is below 1; give the number of runs of each recipe")
    return range(config.seed, config.seed + count)
