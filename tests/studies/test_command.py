"""`fp4lab compare` and `fp4lab report` from the command line."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fp4lab import cli, formats
from fp4lab.data import Shards, prepare
from fp4lab.errors import InputError
from fp4lab.nn import Linear
from fp4lab.recipes import LinearRecipe, get, read
from fp4lab.report import words
from fp4lab.report.folder import ComparisonRecord
from fp4lab.report.summary import Failure, Summary
from fp4lab.studies import compare_runs
from fp4lab.studies.command import (
    CompareArguments,
    command_line,
    default_folder,
    exit_status,
    run_config,
)
from fp4lab.studies.summarize import Finished, Runs, summarize
from fp4lab.train import DataConfig, LanguageTask, ModelConfig, RunConfig, toml

pytestmark = pytest.mark.usefixtures("few_rounds")

TEXT = "All work and no play makes a model dull; numbers are 0123456789.\n" * 300
TINY = RunConfig(
    steps=4,
    eval_every=2,
    checkpoint_every=2,
    batch_size=4,
    device="cpu",
    threads=1,
    model=ModelConfig(dim=32, num_blocks=1, num_heads=2, num_kv_heads=2, hidden_dim=32),
    data=DataConfig(sequence_length=32, eval_windows=8),
)


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """Options of a comparison that takes a second."""
    text = tmp_path / "text"
    text.mkdir()
    (text / "shining.txt").write_text(TEXT)
    config = tmp_path / "tiny.toml"
    config.write_text(toml.dumps(TINY))
    return ["--config", str(config), "--data", str(text), "--recipes", "bf16,mxfp4"]


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """New processes take seconds to start."""
    monkeypatch.setattr("fp4lab.studies.study.unpicklable", lambda work: "the test says so")


@pytest.mark.usefixtures("in_process")
def test_compare_then_report(
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    out = tmp_path / "out"
    assert cli.main(["compare", *options, "--seeds", "2", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "tokens for each of" in printed.err
    assert "That is below 25" in printed.err
    assert "95 % interval" in printed.out
    assert "mxfp4 against bf16: " in printed.out
    assert printed.out.splitlines()[-1] == f"report: {out / 'report.html'}"
    summary = json.loads((out / "summary.json").read_text())
    recipe = summary["recipes"]["mxfp4"]
    low, high = recipe["interval"]
    assert low <= recipe["gap"] <= high
    assert recipe["seeds"] == 2
    assert recipe["bits_per_byte"] == pytest.approx(recipe["val_loss"] / 0.6931471805599453)
    page = (out / "report.html").read_text()
    for fact in ("sha256", "tokens for each of", "mxfp4", "torch", "UTC", "0.125"):
        assert fact in page
    described = page[page.index("<h2>Model</h2>") : page.index("</details>")]
    assert f"fp4lab compare --recipes bf16,mxfp4 --seeds 2 --data {tmp_path / 'text'}" in described
    assert "device</th><td>cpu</td>" in described
    chosen, _, others = described.partition("<h2>Other settings</h2>")
    assert "optim.beta1" in others  # a default
    assert "model.num_blocks</th><td>1</td>" in chosen
    assert "model.num_blocks" not in others
    assert "The same for all 4 runs, which differ in recipe and seed only" in page
    size = LanguageTask.from_config(TINY).build_model().num_parameters(embedding=True)
    assert f"({size:,} parameters) was trained" in page
    (out / "report.html").unlink()
    assert cli.main(["report", str(out)]) == 0
    assert (out / "report.html").read_text() == page
    # each run is a run of its own, too
    assert cli.main(["eval", str(out / "runs" / "mxfp4-seed1")]) == 0
    loss = recipe["val_losses"]["1"]
    assert f"held-out loss {loss:.4f} nats" in capsys.readouterr().out


@pytest.mark.slow
def test_a_format_that_a_recipe_s_file_declares(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In runs of their own processes, in their folders and in the report."""
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'name = "mine"\nlinear = "nvfp4_1x32"\n\n[[formats]]\nname = "nvfp4_1x32"\n'
        'element = "e2m1"\nblock = [1, 32]\nscale = "e4m3"\nlevel = "tensor"\n'
    )
    out, chosen = tmp_path / "out", f"bf16,nvfp4_base,{mine}"
    assert cli.main(["compare", *options, "--recipes", chosen, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "mine against bf16: " in printed
    summary = json.loads((out / "summary.json").read_text())["recipes"]
    losses = {name: entry["val_loss"] for name, entry in summary.items()}
    assert len(set(losses.values())) == 3
    assert "nvfp4_1x32" in (out / "report.html").read_text()
    mine.unlink()
    wide = formats.NVFP4.replace(name="nvfp4_1x32", block=(1, 32))
    run = out / "runs" / "mine-seed0"
    assert read(run / "recipe.toml").linear == LinearRecipe.uniform(wide)
    assert cli.main(["eval", str(run)]) == 0
    assert f"held-out loss {losses['mine']:.4f} nats" in capsys.readouterr().out


@pytest.mark.usefixtures("in_process")
def test_what_the_runs_should_share_and_do_not_is_told_first(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["compare", *options, "--out", str(out)]
    assert cli.main(command) == 0
    runs = [out / "runs" / f"{name}-seed0" for name in ("bf16", "mxfp4")]
    record = json.loads((runs[1] / "environment.json").read_text())
    record["environment"]["torch"] = "1.0"
    (runs[1] / "environment.json").write_text(json.dumps(record))
    capsys.readouterr()
    assert cli.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    warning = f"torch (environment): 1.0 in mxfp4-seed0, {torch.__version__} in bf16-seed0."
    assert lines[:2] == [words.DIFFERENT, f"  {warning}"]
    page = (out / "report.html").read_text()
    assert page.index(words.DIFFERENT) < page.index(warning) < page.index("mxfp4 against bf16")
    assert cli.main(["diff", *map(str, runs)]) == 0
    table = capsys.readouterr().out
    rows = [line.split() for line in table.splitlines()]
    assert ["environment", "torch", torch.__version__, "1.0"] in rows
    assert ["recipe", "name", "bf16", "mxfp4"] in rows
    assert "The training losses differ from step 1 on" in table


@pytest.mark.usefixtures("in_process")
def test_batch_losses_are_those_of_the_validation(options: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    cli.main(["compare", *options, "--out", str(out)])
    for run in out.glob("runs/*"):
        batches = json.loads((run / "measures.json").read_text())["batch_losses"]
        result = json.loads((run / "result.json").read_text())
        assert sum(batches) / len(batches) == pytest.approx(result["val_loss"], rel=1e-15)


def test_the_defaults_can_tell_recipes_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `fp4lab compare` compares, and that it trains long enough for its model."""
    planned = []

    def plan(run: RunConfig, chosen: list[str], **options: Any) -> None:
        planned.append((run, chosen, options["baseline"], options["seeds"]))
        raise InputError("planned")

    monkeypatch.setattr("fp4lab.studies.command.compare_runs", plan)
    assert cli.main(["compare"]) == 2
    assert capsys.readouterr().err == "fp4lab: planned\n"
    ((run, chosen, baseline, seeds),) = planned
    assert (chosen, baseline, seeds) == (["bf16", "nvfp4", "mxfp4"], None, 1)
    tokens = run.steps * run.microbatches * run.batch_size * run.data.sequence_length
    with torch.device("meta"):
        model = LanguageTask.from_config(run).build_model()
    sizes = {name: value.numel() for name, value in model.named_parameters()}
    # As scaling laws count: without the embedding, which the head is to the output.
    assert sizes.pop("embedding.weight") == sizes.pop("head.weight") > 0
    assert tokens / sum(sizes.values()) >= 25


def test_seeds_change_the_data_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan says of its tasks, without running it."""
    plans = []
    monkeypatch.setattr(
        "fp4lab.studies.comparison.run_study", lambda plan, console: plans.append(plan)
    )
    run = dataclasses.replace(TINY, seed=5, data=DataConfig(sequence_length=32))
    compare_runs(run, ["bf16", "nvfp4", "mxfp4"], seeds=2, out=tmp_path)
    (plan,) = plans
    assert list(plan.tasks) == [5, 6]
    assert not (plan.tasks[5].batch(0)[0] == plan.tasks[6].batch(0)[0]).all()
    assert (plan.tasks[5].validation()[0][0] == plan.tasks[6].validation()[0][0]).all()
    assert list(plan.recipes) == ["bf16", "nvfp4", "mxfp4"]
    assert not {"seed", "threads", "recipe"} & plan.settings.keys()
    assert plan.settings["data.sha256"] == plan.tasks[5].identity()["sha256"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--recipes", "bf16,nvfp5"], "'nvfp5' is not known; did you mean 'nvfp4'?"),
        (["--model", "gpt-tny"], "'gpt-tny' is not known"),
        (["--data", "/no/such/folder"], "/no/such/folder"),
        (["--recipes", "no-such.toml"], "no-such.toml"),
        (["--baseline", "fp8_tensor"], "baseline='fp8_tensor' is none of the recipes"),
        (["--steps", "0"], "steps=0 is below 1"),
        (["--seeds", "many"], "--seeds"),
        (["--recipe", "bf16"], "--recipe"),
        (["--recipes", "bf16,nvfp4_last4"], "'nvfp4_last4' cannot train this model: blocks=last 4"),
        (["--recipes", "bf16,fp8_block"], "'fp8_block' cannot train this model: layer 'blocks.0"),
        (["--jobs", "0"], "jobs=0 is below 1"),
        (["--confidence", "95"], "confidence=95.0 must lie between 0 and 1"),
        (["--device", "cuda", "--jobs", "1"], "device='cuda' is not available here"),
    ],
)
def test_what_the_user_got_wrong_is_one_line(
    extra: list[str],
    message: str,
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "out"
    assert cli.main(["compare", *options, "--out", str(out), *extra]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fp4lab: ")
    assert message in line
    assert not out.exists()


@pytest.mark.usefixtures("in_process")
def test_a_run_that_ends_in_a_nan_is_told_by_status_table_and_report(
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    of_task = LanguageTask.loss

    def loss(task: LanguageTask, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        layer = next(module for module in model.modules() if isinstance(module, Linear))
        factor = float("nan") if layer.recipe == get("mxfp8").linear else 1.0
        return factor * of_task(task, model, batch)

    monkeypatch.setattr(LanguageTask, "loss", loss)
    out = tmp_path / "out"
    recipes = ["--recipes", "bf16,mxfp4,mxfp8"]
    assert cli.main(["compare", *options, *recipes, "--out", str(out)]) == 5
    printed = capsys.readouterr().out
    (row,) = (line for line in printed.splitlines() if "│ mxfp8" in line)
    assert "failed" in row
    assert "mxfp8, seed 0, failed: NonFiniteError: step 1: loss=nan" in printed
    page = (out / "report.html").read_text()
    assert '<td class="word">failed</td>' in page
    assert page.count("loss=nan, gradient norm=nan; first non-finite: ") == 2


def test_report_of_no_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "give the folder of a finished comparison" in capsys.readouterr().err


def test_report_of_a_comparison_that_has_not_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ComparisonRecord(settings={}, recipes={}, threads=1, facts={}).write(tmp_path)
    assert cli.main(["report", str(tmp_path)]) == 2
    error = capsys.readouterr().err.replace("\n", " ")
    assert "has not ended; run its command once more" in error


def test_help_says_how_many_seeds_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["compare", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "give three or more" in text
    assert "one degree of freedom" in text


def test_the_default_folder_follows_the_settings() -> None:
    one, other = default_folder(TINY), default_folder(dataclasses.replace(TINY, steps=5))
    assert one != other
    assert one == default_folder(dataclasses.replace(TINY, seed=3, threads=2, recipe="nvfp4"))
    assert one.parts[0] == "runs"


def test_unknown_presets_leave_no_folder(tmp_path: Path) -> None:
    run = dataclasses.replace(TINY, model=ModelConfig(preset="gpt-tny"))
    with pytest.raises(InputError, match="did you mean 'gpt-tiny'"):
        compare_runs(run, ["bf16", "nvfp4", "mxfp4"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("in_process")
def test_a_batch_that_fills_no_blocks_is_padded_when_asked(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = [*options, "--batch-size", "3", "--steps", "1", "--out", str(tmp_path / "out")]
    odd += ["--recipes", "bf16,nvfp4_base"]
    Path(odd[1]).write_text(Path(odd[1]).read_text().replace("length = 32", "length = 30"))
    assert cli.main(["compare", *odd]) == 2
    assert "90 tokens are not a multiple" in capsys.readouterr().err
    assert cli.main(["compare", *odd, "--ragged", "pad"]) == 0


def test_a_batch_that_fills_no_blocks_leaves_no_folder(tmp_path: Path) -> None:
    data = DataConfig(sequence_length=30, eval_windows=8)
    run = dataclasses.replace(TINY, batch_size=3, data=data)
    with pytest.raises(InputError, match=r"recipe 'mxfp4' cannot train .*: 90 tokens"):
        compare_runs(run, ["bf16", "mxfp4"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("dead", "status"), [((), 0), (("mxfp4",), 5), (("mxfp4", "nvfp4"), 1), (("bf16",), 1)]
)
def test_exit_status_says_whether_anything_was_compared(dead: tuple[str, ...], status: int) -> None:
    names = ("bf16", "nvfp4", "mxfp4")
    runs: Runs = {
        name: {0: Failure(0, "NaN") if name in dead else Finished(1.0, None, ())} for name in names
    }
    diffs = dict.fromkeys(names, "")
    assert exit_status(summarize(runs, "bf16", confidence=0.95, times={}, diffs=diffs)) == status
    # One seed of a recipe that failed leaves the recipe, but is no success.
    runs = {name: {**run, 1: Finished(1.0, None, ())} for name, run in runs.items()}
    assert exit_status(summarize(runs, "bf16", confidence=0.95, times={}, diffs=diffs)) == (
        5 if dead else 0
    )


def _wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it took longer than a minute")


def _group_is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_and_the_same_command_goes_on(
    options: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    config = Path(options[1])
    config.write_text(toml.dumps(dataclasses.replace(TINY, eval_every=100)))
    command = [sys.executable, "-m", "fp4lab", "compare", *options,
               "--steps", "300", "--jobs", "2", "--out", str(out)]  # fmt: skip
    # a shell's background job ignores Ctrl-C, and so does what it starts: tests may be such a job
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    first = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    try:
        metrics = [out / "runs" / f"{name}-seed0" / "metrics.jsonl" for name in ("bf16", "mxfp4")]
        _wait_until(lambda: all(p.is_file() and p.stat().st_size > 1000 for p in metrics))
        os.killpg(first.pid, signal.SIGINT)
        _, said = first.communicate(timeout=200)
        assert first.returncode == 130
        assert "the same command goes on" in said
        assert "Traceback" not in said
        _wait_until(lambda: _group_is_gone(first.pid))
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
    assert not (out / "summary.json").exists()
    saved = {path.parent.parent.name for path in out.glob("runs/*/checkpoints/step-*")}
    assert saved == {"bf16-seed0", "mxfp4-seed0"}
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert all("resumed from" in log.read_text() for log in out.glob("logs/*.txt"))
    assert json.loads((out / "summary.json").read_text())["order"] in (
        ["bf16", "mxfp4"],
        ["mxfp4", "bf16"],
    )


@pytest.mark.usefixtures("in_process")
def test_a_comparison_on_shards_has_the_tokenizer_in_every_run(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers", reason="trains a BPE, which needs the extra data")
    shards, out = tmp_path / "shards", tmp_path / "out"
    source = options[options.index("--data") + 1]
    prepare(source, shards, tokenizer="bpe", vocab_size=272)
    options[options.index("--data") + 1] = str(shards)
    assert cli.main(["compare", *options, "--out", str(out)]) == 0
    capsys.readouterr()
    for run in (out / "runs").iterdir():
        assert (run / "tokenizer.json").read_bytes() == (shards / "tokenizer.json").read_bytes()
        assert toml.load(run / "config.toml", RunConfig).wandb_group == "out"
    found = Summary.read(out / "summary.json").recipes["mxfp4"]
    nats, bits = found.val_losses["0"], found.bits_per_byte
    tokens_per_byte = Shards.open(shards).tokens_per_byte
    assert bits == pytest.approx(nats / math.log(2) * tokens_per_byte, rel=1e-15)


def test_logs_of_the_runs_are_options_of_the_command() -> None:
    given = CompareArguments(tensorboard=True, wandb="numerics", steps=3)
    run = run_config(given)
    assert (run.tensorboard, run.wandb) == (True, "numerics")
    assert command_line(given) == "fp4lab compare --steps 3 --tensorboard --wandb numerics"
    assert default_folder(run) == default_folder(run_config(CompareArguments(steps=3)))
