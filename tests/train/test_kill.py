"""kill -9 for real: a run that dies again and again ends with the bits of one that never did."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fp4lab import cli, recipes
from fp4lab.train import DataConfig, FitResult, ModelConfig, OptimConfig, RunConfig, toml, train
from fp4lab.train import checkpoint as checkpoints
from fp4lab.train.metrics import Event

Lines = Callable[[Path], list[Event]]

#: Trains in a process that is killed before the bytes of its file number `moment` are on the disk.
DYING = """
import itertools, os, signal
from fp4lab.train import train

calls, fsync = itertools.count(1), os.fsync

def die(descriptor):
    if next(calls) == moment:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

os.fsync = die
train(config, folder=folder)
"""


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A GPT of 10 k parameters that saves at every other step."""
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_bytes(bytes(random.Random(0).choices(b"abcdefgh \n", k=4000)))
    return RunConfig(
        steps=40,
        recipe="bf16",
        batch_size=2,
        microbatches=2,
        eval_every=5,
        checkpoint_every=2,
        device="cpu",
        threads=1,
        model=ModelConfig(
            dim=16, num_blocks=1, num_heads=1, num_kv_heads=1, head_dim=16, hidden_dim=32
        ),
        data=DataConfig(source=str(text), sequence_length=16, eval_windows=2),
    )


def spawn(target: Callable[..., object], *arguments: object) -> Any:
    """A call in a process of its own, forked from one that has torch imported already."""
    context = multiprocessing.get_context("forkserver")
    # torch imports dynamo, which takes seconds, when the first optimizer is made.
    context.set_forkserver_preload(["torch._dynamo", "fp4lab.train", "fp4lab.nn", "fp4lab.models"])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def kill_after_lines(process: Any, folder: Path, *, lines: int, extra: float) -> bool:
    """Send SIGKILL once so many lines are new in metrics.jsonl; False if it ended before."""
    metrics = folder / "metrics.jsonl"

    def count() -> int:
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    start = count()
    while process.is_alive() and abs(count() - start) < lines:
        time.sleep(0.0005)
    time.sleep(extra)
    if not process.is_alive():
        return False
    process.kill()
    process.join()
    return True


def assert_same_run(a: Path, b: Path, lines: Lines) -> None:
    assert lines(a) == lines(b)
    newest = [checkpoints.available(folder / "checkpoints")[-1] for folder in (a, b)]
    left, right = (checkpoints.load(path) for path in newest)
    assert left.step == right.step
    for file, tensors in left.tensors.items():
        assert tensors.keys() == right.tensors[file].keys()
        assert all(torch.equal(t, right.tensors[file][name]) for name, t in tensors.items())


def check_kills(config: RunConfig, tmp_path: Path, lines: Lines, *, kills: int, seed: int) -> None:
    draw = random.Random(seed)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(config, folder=whole)
    killed = 0
    for _ in range(kills):
        process = spawn(partial(train, folder=cut), config)
        killed += kill_after_lines(
            process, cut, lines=draw.randrange(0, 6), extra=draw.uniform(0.0, 0.02)
        )
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert killed > 0
    result = train(config, folder=cut)
    assert_same_run(whole, cut, lines)
    expected = FitResult.load(whole)
    assert expected is not None
    same_but_time = dataclasses.replace(
        expected, folder=cut, step_time_median=result.step_time_median
    )
    assert result == same_but_time
    # Nothing of the deaths is left behind.
    assert not list(cut.rglob("*.tmp"))


def check_deaths(
    config: RunConfig, tmp_path: Path, lines: Lines, moments: Iterable[int]
) -> int | None:
    """Kill at each moment a run that never was killed before; the first moment it did not reach."""
    whole = tmp_path / "whole"
    train(config, folder=whole)
    for moment in moments:
        cut = tmp_path / f"cut{moment}"
        process = spawn(exec, DYING, {"config": config, "folder": cut, "moment": moment})
        process.join()
        if process.exitcode == 0:
            return moment
        assert process.exitcode == -signal.SIGKILL
        train(config, folder=cut)
        assert_same_run(whole, cut, lines)
        assert {path.name for path in cut.iterdir()} == {path.name for path in whole.iterdir()}
        assert not list(cut.rglob("*.tmp"))
    return None


def test_a_death_while_the_folder_is_made_or_metrics_are_begun(
    config: RunConfig, tmp_path: Path, lines: Lines
) -> None:
    # A file and its folder in turn: environment 1, 2, recipe 3, 4, conversion, config 7, metrics 9.
    config = dataclasses.replace(config, steps=2, eval_every=2)
    assert check_deaths(config, tmp_path, lines, (1, 7, 9)) is None


@pytest.mark.slow
def test_a_death_at_any_moment(config: RunConfig, tmp_path: Path, lines: Lines) -> None:
    config = dataclasses.replace(config, steps=4, keep_checkpoints=1, recipe="nvfp4")
    last = check_deaths(config, tmp_path, lines, range(1, 99))
    # Five files before training, two checkpoints, and the result.
    assert last == 2 * 5 + 2 * 8 + 2 + 1


def test_killed_runs_resume_to_the_same_bits(
    config: RunConfig, tmp_path: Path, lines: Lines
) -> None:
    config = dataclasses.replace(config, steps=20)
    check_kills(config, tmp_path, lines, kills=2, seed=1)


@pytest.mark.slow
def test_often_killed_runs_resume_to_the_same_bits(
    config: RunConfig, tmp_path: Path, lines: Lines
) -> None:
    config = dataclasses.replace(config, steps=120, checkpoint_every=1)
    check_kills(config, tmp_path, lines, kills=12, seed=2)


@pytest.mark.slow
def test_killed_runs_with_stochastic_rounding_and_a_switch_of_precision(
    config: RunConfig, tmp_path: Path, lines: Lines
) -> None:
    to = recipes.get("bf16")
    recipe = recipes.get("nvfp4").switch(to, at="decay", part="forward").switch(to, at=20)
    file = tmp_path / "recipe.toml"
    file.write_text(recipe.to_toml())
    optim = OptimConfig(schedule="wsd", decay_fraction=0.75)
    config = dataclasses.replace(config, steps=24, recipe=str(file), optim=optim)
    check_kills(config, tmp_path, lines, kills=6, seed=3)


def command(config: RunConfig, folder: Path, *before: str) -> list[str]:
    file = folder.with_suffix(".toml")
    file.write_text(toml.dumps(config))
    run = ["-m", "fp4lab", "train", "--config", str(file), "--out", str(folder)]
    return [sys.executable, *before, *run]


@pytest.mark.slow
def test_the_command_stops_with_status_4_and_goes_on(
    config: RunConfig, tmp_path: Path, lines: Lines, capsys: pytest.CaptureFixture[str]
) -> None:
    words = command(config, tmp_path / "run")
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") > 2):
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 4
    assert "stopped by SIGTERM; the same command goes on from here" in errors
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "resumed from" in done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'run'}: 40 steps, held-out loss ")
    train(config, folder=tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "run", lines)

    assert cli.main(["eval", str(tmp_path / "run")]) == 0
    result = FitResult.load(tmp_path / "whole")
    assert result is not None
    assert f"held-out loss {result.val_loss:.4f} nats" in capsys.readouterr().out


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def stop_torchrun(words: list[str], metrics: Path, *, rank: int | None) -> tuple[int, str]:
    """Send SIGTERM to torchrun, or to one rank, after some new lines; its status and messages."""
    before = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") > before + 2):
        assert process.poll() is None
        time.sleep(0.002)
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(process.pid if rank is None else int(ranks[rank]), signal.SIGTERM)
    _, errors = process.communicate()
    return process.returncode, errors


@pytest.mark.slow
def test_two_processes_are_stopped_and_go_on_to_the_same_bits(
    config: RunConfig, tmp_path: Path, lines: Lines
) -> None:
    config = dataclasses.replace(config, recipe="nvfp4", steps=100, checkpoint_every=50)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # one process with both microbatches, which the test below says is the same
    train(config, folder=tmp_path / "whole")
    words = command(config, tmp_path / "cut", *TORCHRUN)
    metrics = tmp_path / "cut" / "metrics.jsonl"
    # torchrun says 1 whatever its processes said; it names their statuses when it was not stopped.
    for rank in (None, 1):
        status, errors = stop_torchrun(words, metrics, rank=rank)
        assert status == 1
        assert "stopped by SIGTERM; the same command goes on from here" in errors
        assert rank is None or "(exitcode: 4)" in errors
        end = lines(tmp_path / "cut")[-1]
        assert (end["kind"], end["reason"]) == ("end", "SIGTERM")
        assert (tmp_path / "cut" / "checkpoints" / f"step-{end['step']:08d}").is_dir()
    hurried = [*words, "--time-limit", "1e-9"]
    done = subprocess.run(hurried, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "(exitcode: 4)" in done.stderr
    assert lines(tmp_path / "cut")[-1] == {
        "kind": "end", "step": end["step"] + 1, "reason": "time limit",
    }  # fmt: skip
    subprocess.run(words, check=True, capture_output=True, env=environment)
    assert_same_run(tmp_path / "whole", tmp_path / "cut", lines)


@pytest.mark.slow
def test_two_processes_with_one_microbatch_are_one_with_two(
    config: RunConfig, tmp_path: Path, lines: Lines
) -> None:
    """The sum of two gradients does not depend on the order, so even the bits are the same."""
    config = dataclasses.replace(config, recipe="nvfp4", steps=8)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = command(config, tmp_path / "two", *TORCHRUN)
    subprocess.run(words, check=True, capture_output=True, env=environment)
    train(config, folder=tmp_path / "one")
    assert_same_run(tmp_path / "one", tmp_path / "two", lines)
    # The run can change its number of processes.
    for name in ("checkpoints/step-00000008", "result.json"):
        path = tmp_path / "two" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    notices: list[Event] = []
    train(config, folder=tmp_path / "two", on_event=notices.append)
    texts = [event["text"] for event in notices if event["kind"] == "notice"]
    assert "resumed elsewhere" in texts[0]
    assert "processes 2 -> 1" in texts[0]
    assert_same_run(tmp_path / "one", tmp_path / "two", lines)
