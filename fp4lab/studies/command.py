"""`fp4lab compare`: its options, and what it does."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import FlagCreatePairsOff

from fp4lab import report
from fp4lab.report.summary import FAILED, Summary
from fp4lab.specs.options import Unset
from fp4lab.studies.comparison import compare_runs
from fp4lab.studies.facts import settings
from fp4lab.studies.progress import messages
from fp4lab.train import RunConfig, toml

COMPARED, NOTHING_COMPARED, RUNS_FAILED = 0, 1, 5


@dataclass(frozen=True, kw_only=True)
class CompareArguments:
    """Train one model under several precision recipes and report what each costs in loss.

    All start from the same weights and see the same data. The report says where the error arises,
    too. A comparison that was interrupted goes on where it was. The exit status is 5 if runs failed
    and a comparison was possible without them, 1 if it was not.
    """

    recipes: str = "bf16,nvfp4,mxfp4"
    """Recipes with commas between them: names or TOML files."""
    baseline: Unset[str] = None
    """The recipe the others are held against; by default the first."""
    seeds: int = 1
    """Runs of each recipe. One gives no interval; with two it rests on one degree of freedom (a t
    factor of 12.7 at 95 %), so give three or more."""
    steps: Unset[int] = None
    """Updates of the weights in each run; 2050 by default."""
    model: Unset[str] = None
    """Preset of the model; gpt-tiny by default."""
    data: Unset[str] = None
    """"stdlib", the default, a folder of text files, or shards of `fp4lab data prepare`."""
    batch_size: Unset[int] = None
    """Sequences in one batch; 16 by default."""
    learning_rate: Unset[float] = None
    """Peak learning rate; 0.003 by default."""
    ragged: Unset[Literal["error", "pad"]] = None
    """What to do where features or tokens do not fit a format's blocks; "error" by default, "pad"
    completes blocks with zeros."""
    device: Unset[Literal["auto", "cpu", "cuda"]] = None
    """Where to train; by default on a GPU if there is one."""
    tensorboard: FlagCreatePairsOff[bool] = False
    """Whether every run writes TensorBoard event files too."""
    wandb: Unset[str] = None
    """Weights & Biases project to log the runs to, too; "fp4lab" if no name follows."""
    config: Unset[Path] = None
    """TOML file of a run, for everything else about training."""
    out: Unset[Path] = None
    """Folder of the results; by default one in runs/, by settings."""
    jobs: Unset[int] = None
    """Runs at a time; by default one a core."""
    confidence: float = 0.95
    """Confidence of the intervals."""


def compare(given: CompareArguments) -> int:
    """Run the comparison and print what was found; the exit status."""
    run = run_config(given)
    stderr = messages()
    try:
        found = compare_runs(
            run,
            [name.strip() for name in given.recipes.split(",") if name.strip()],
            baseline=given.baseline,
            seeds=given.seeds,
            out=given.out or default_folder(run),
            jobs=given.jobs,
            confidence=given.confidence,
            console=stderr,
            command=command_line(given),
        )
    except KeyboardInterrupt:
        stderr.print(
            "interrupted; the same command goes on from the last checkpoints", soft_wrap=True
        )
        raise
    report.show(found.summary)
    print(f"report: {found.report}")
    return exit_status(found.summary)


def run_config(given: CompareArguments) -> RunConfig:
    """The training that the options describe: the file's, else the default's, as changed."""
    run = RunConfig() if given.config is None else toml.load(given.config, RunConfig)
    model, data, optim = run.model, run.data, run.optim
    if given.model is not None:
        model = dataclasses.replace(model, preset=given.model)
    if given.data is not None:
        data = dataclasses.replace(data, source=given.data)
    if given.learning_rate is not None:
        optim = dataclasses.replace(optim, learning_rate=given.learning_rate)
    return dataclasses.replace(
        run,
        steps=run.steps if given.steps is None else given.steps,
        batch_size=run.batch_size if given.batch_size is None else given.batch_size,
        device=given.device or run.device,
        ragged=given.ragged or run.ragged,
        tensorboard=given.tensorboard or run.tensorboard,
        wandb=run.wandb if given.wandb is None else given.wandb,
        model=model,
        data=data,
        optim=optim,
    )


def command_line(given: CompareArguments) -> str:
    """The command that gives these options.

    >>> command_line(CompareArguments(steps=60, out=Path("my runs")))
    "fp4lab compare --steps 60 --out 'my runs'"
    """
    words = ["fp4lab", "compare"]
    for field in dataclasses.fields(given):
        value = getattr(given, field.name)
        if value != field.default:
            words.append(f"--{field.name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return shlex.join(words)


def default_folder(run: RunConfig) -> Path:
    """`runs/compare-<preset>-<start of a hash of the settings>`: other settings, other folder."""
    text = json.dumps(settings(run), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Path("runs") / f"compare-{run.model.preset}-{digest[:8]}"


def exit_status(summary: Summary) -> int:
    """`NOTHING_COMPARED` unless the baseline and another recipe finished."""
    finished = [name for name in summary.order if summary.recipes[name].verdict != FAILED]
    enough = len(finished) >= 2 and summary.baseline in finished
    if not enough:
        return NOTHING_COMPARED
    return RUNS_FAILED if any(r.failed for r in summary.recipes.values()) else COMPARED
