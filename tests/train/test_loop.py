from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fp4lab.errors import InputError
from fp4lab.optim import build_optimizer
from fp4lab.recipes import get
from fp4lab.train import checkpoint as checkpoints
from fp4lab.train.config import FitConfig
from fp4lab.train.evaluation import evaluate
from fp4lab.train.folder import FitResult
from fp4lab.train.listeners import PlainLines
from fp4lab.train.loop import fit
from fp4lab.train.metrics import Event

Lines = Callable[[Path], list[Event]]


def run(task: Any, config: FitConfig, folder: Path, **options: Any) -> FitResult:
    return fit(task, recipe=None, config=config, folder=folder, **options)


def weights(folder: Path) -> dict[str, Tensor]:
    newest = checkpoints.available(folder / "checkpoints")[-1]
    tensors = checkpoints.load(newest).tensors
    return {f"{file}:{name}": t for file, group in tensors.items() for name, t in group.items()}


def assert_same_run(a: Path, b: Path, lines: Lines) -> None:
    assert lines(a) == lines(b)
    left, right = weights(a), weights(b)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


class DeathError(Exception):
    """Stands for a death of the process."""


def dying_at(step: int, kind: str) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        if event["step"] == step and event["kind"] == kind:
            raise DeathError

    return on_event


def test_a_run_leaves_what_it_promises(
    counted_task: Any, fit_config: FitConfig, tmp_path: Path, lines: Lines
) -> None:
    folder = tmp_path / "run"
    result = run(counted_task(), fit_config, folder)
    assert sorted(p.name for p in folder.iterdir()) == [
        ".lock",
        "checkpoints",
        "config.toml",
        "environment.json",
        "metrics.jsonl",
        "result.json",
    ]
    events = lines(folder)
    kinds = [(event["kind"], event["step"]) for event in events]
    assert kinds == [
        *[("train", s) for s in range(1, 6)],
        ("eval", 5),
        *[("train", s) for s in range(6, 11)],
        ("eval", 10),
        *[("train", s) for s in (11, 12)],
        ("eval", 12),
        ("end", 12),
    ]
    # Two microbatches of 8 targets a step.
    assert [e["tokens"] for e in events if e["kind"] == "train"] == list(range(16, 193, 16))
    names = [p.name for p in checkpoints.available(folder / "checkpoints")]
    assert names == ["step-00000008", "step-00000012"]
    last = [event for event in events if event["kind"] == "eval"][-1]
    assert last["bits_per_byte"] == 2 * last["loss"]
    stored = json.loads((folder / "result.json").read_text())
    assert stored["val_loss"] == result.val_loss == last["loss"]
    assert (result.finished, result.steps, result.tokens) == (True, 12, 192)
    assert (result.config_hash, result.data_sha256) == (fit_config.hash, "a" * 64)
    assert result.step_time_median is not None
    assert result.step_time_median > 0


def test_the_loop_is_the_plain_training_loop(small_task: Any, tmp_path: Path, lines: Lines) -> None:
    class Deterministic(small_task):  # type: ignore[misc]
        def build_model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    config = FitConfig(steps=5, microbatches=2, seed=7, device="cpu", threads=1)
    task = Deterministic()
    run(task, config, tmp_path / "run")

    torch.manual_seed(7)
    model = task.build_model()
    optimizer = build_optimizer(model, learning_rate=1.0)
    losses = []
    for step in range(5):
        optimizer.zero_grad()
        parts = [task.loss(model, task.batch(2 * step + m)) for m in range(2)]
        for part in parts:
            (part / 2).backward()
        losses.append(sum(part.item() / 2 for part in parts))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = config.schedule().learning_rate(step)
        optimizer.step()
    reported = [e["loss"] for e in lines(tmp_path / "run") if e["kind"] == "train"]
    assert reported == losses
    saved = weights(tmp_path / "run")
    for name, value in model.state_dict().items():
        assert torch.equal(saved[f"model:{name}"], value)


def test_accumulation_equals_the_big_batch(small_task: Any, tmp_path: Path, lines: Lines) -> None:
    class Linear(small_task):  # type: ignore[misc]
        size = 8

        def build_model(self) -> nn.Module:
            return nn.Linear(4, 1).double()

        def batch(self, index: int) -> tuple[Tensor, Tensor]:
            whole = torch.randn(400, 4, dtype=torch.float64, generator=torch.manual_seed(1))
            x = whole[index * self.size : (index + 1) * self.size]
            return x, x.sum(dim=1, keepdim=True)

        def validation(self) -> list[tuple[Tensor, Tensor]]:
            return []

    class Big(Linear):
        size = 32

    small = FitConfig(steps=6, microbatches=4, device="cpu")
    run(Linear(), small, tmp_path / "small")
    run(Big(), dataclasses.replace(small, microbatches=1), tmp_path / "big")
    left, right = weights(tmp_path / "small"), weights(tmp_path / "big")
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=1e-12, atol=0)
    result = FitResult.load(tmp_path / "big")
    assert result is not None
    assert result.val_loss is None


@pytest.mark.parametrize(
    "death",
    [(1, "train"), (4, "train"), (4, "checkpoint"), (5, "eval"), (10, "train"), (12, "checkpoint")],
)
def test_resume_gives_the_same_bits(
    counted_task: Any, fit_config: FitConfig, tmp_path: Path, lines: Lines, death: tuple[int, str]
) -> None:
    task = counted_task()
    run(task, fit_config, tmp_path / "whole")
    with pytest.raises(DeathError):
        run(task, fit_config, tmp_path / "cut", on_event=dying_at(*death))
    resumed = run(task, fit_config, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut", lines)
    whole = FitResult.load(tmp_path / "whole")
    assert whole is not None
    assert (resumed.val_loss, resumed.tokens) == (whole.val_loss, whole.tokens)


def test_a_torn_last_line_is_repaired(
    small_task: Any, fit_config: FitConfig, tmp_path: Path, lines: Lines
) -> None:
    run(small_task(), fit_config, tmp_path / "whole")
    with pytest.raises(DeathError):
        run(small_task(), fit_config, tmp_path / "cut", on_event=dying_at(7, "train"))
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 8, "lo')
    run(small_task(), fit_config, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut", lines)


def test_a_damaged_newest_checkpoint_costs_only_time(
    small_task: Any, fit_config: FitConfig, tmp_path: Path, lines: Lines
) -> None:
    run(small_task(), fit_config, tmp_path / "whole")
    with pytest.raises(DeathError):
        run(small_task(), fit_config, tmp_path / "cut", on_event=dying_at(10, "train"))
    damaged = tmp_path / "cut" / "checkpoints" / "step-00000008" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(InputError, match="step-00000008 is damaged"):
        evaluate(tmp_path / "cut", task=small_task(), device="cpu")
    events: list[Event] = []
    run(small_task(), fit_config, tmp_path / "cut", on_event=events.append)
    notices = [event["text"] for event in events if event["kind"] == "notice"]
    assert "step-00000008 is damaged" in notices[0]
    assert "resumed from" in notices[1]
    assert "step-00000004" in notices[1]
    assert_same_run(tmp_path / "whole", tmp_path / "cut", lines)


def test_a_run_says_first_what_it_trains(
    small_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    events: list[Event] = []
    config = dataclasses.replace(fit_config, ragged="pad")
    fit(small_task(), recipe=get("nvfp4"), config=config, folder=tmp_path, on_event=events.append)
    text = f"{tmp_path}: 65 parameters, recipe nvfp4: 2 converted"
    assert events[0] == {"kind": "begin", "step": 0, "text": text}
    shown = io.StringIO()
    PlainLines(1, shown)(events[0])
    assert shown.getvalue() == f"{text}\n"


def test_a_finished_run_is_not_run_again(
    small_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    first = run(small_task(), fit_config, tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert run(small_task(), fit_config, tmp_path, on_event=dying_at(1, "train")) == first
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_another_run_in_the_folder_is_refused(
    counted_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    run(counted_task(), fit_config, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    optim = dataclasses.replace(fit_config.optim, beta1=0.5)
    other = dataclasses.replace(fit_config, seed=3, optim=optim, keep_checkpoints=1)
    with pytest.raises(InputError) as caught:
        run(counted_task(), other, tmp_path)
    message = str(caught.value)
    assert "optim.beta1 (0.9, now 0.5), seed (0, now 3)" in message
    assert "\n" not in message
    assert "keep_checkpoints" not in message
    cure = f"go on with that run by --config {tmp_path / 'config.toml'} --out {tmp_path}"
    assert message.endswith(cure)
    with pytest.raises(InputError, match=r"data \(sha256 aaaaaaaaaaaa, now bbbbbbbbbbbb\)"):
        run(counted_task(data="b" * 64), fit_config, tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_folder_with_other_files_is_refused(
    small_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match=r"holds 'thesis.tex' but no run"):
        run(small_task(), fit_config, tmp_path)


@pytest.mark.parametrize("first", [True, False])
def test_a_second_process_in_the_folder_is_refused(
    small_task: Any, fit_config: FitConfig, tmp_path: Path, lines: Lines, first: bool
) -> None:
    """A lock of another descriptor is as good as that of another process."""
    folder = tmp_path / "new" / "run"
    if not first:
        with pytest.raises(DeathError):
            run(small_task(), fit_config, folder, on_event=dying_at(7, "train"))
    refused: list[str] = []

    def second(event: Event) -> None:
        if event["kind"] == "eval":
            with pytest.raises(InputError) as caught:
                run(small_task(), fit_config, folder)
            refused.append(str(caught.value))

    run(small_task(), fit_config, folder, on_event=second)
    assert set(refused) == {
        f"folder={folder} is in use by a run that is still going; wait for its end, or give "
        "another folder"
    }
    run(small_task(), fit_config, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", folder, lines)


def test_a_death_while_the_folder_is_made_is_survived(
    small_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    (tmp_path / "environment.json").write_text("{}")
    assert run(small_task(), fit_config, tmp_path).finished


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_and_the_run_goes_on_later(
    small_task: Any, fit_config: FitConfig, tmp_path: Path, lines: Lines, number: int
) -> None:
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}

    def send(event: Event) -> None:
        if (event["kind"], event["step"]) == ("train", 6):
            os.kill(os.getpid(), number)

    stopped = run(small_task(), fit_config, tmp_path / "cut", on_event=send)
    assert (stopped.finished, stopped.steps, stopped.val_loss) == (False, 7, None)
    assert lines(tmp_path / "cut")[-1] == {
        "kind": "end",
        "step": 7,
        "reason": signal.Signals(number).name,
    }
    assert (tmp_path / "cut" / "checkpoints" / "step-00000007").is_dir()
    assert not (tmp_path / "cut" / "result.json").exists()
    assert handlers == {n: signal.getsignal(n) for n in handlers}
    assert run(small_task(), fit_config, tmp_path / "cut").finished
    run(small_task(), fit_config, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "cut", lines)


def test_a_time_limit_makes_progress_and_is_not_part_of_the_run(
    small_task: Any, fit_config: FitConfig, tmp_path: Path, lines: Lines
) -> None:
    hurried = dataclasses.replace(fit_config, time_limit=1e-9)
    for step in (1, 2):
        stopped = run(small_task(), hurried, tmp_path / "cut")
        assert (stopped.finished, stopped.steps) == (False, step)
    run(small_task(), fit_config, tmp_path / "cut")
    run(small_task(), fit_config, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "cut", lines)


def test_global_state_is_put_back(
    small_task: Any, fit_config: FitConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    torch.manual_seed(123)
    expected = torch.randn(3)
    torch.manual_seed(123)
    threads = torch.get_num_threads()
    run(small_task(), dataclasses.replace(fit_config, threads=threads + 1), tmp_path)
    assert torch.equal(torch.randn(3), expected)
    assert torch.get_num_threads() == threads


def test_by_default_a_run_has_one_thread(small_task: Any, tmp_path: Path) -> None:
    """As in a comparison, so that both give the same bits; more slow a small model down."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        run(small_task(), FitConfig(steps=1, device="cpu"), tmp_path)
    finally:
        torch.set_num_threads(before)
    record = json.loads((tmp_path / "environment.json").read_text())
    assert record["environment"]["threads"] == 1


def test_compiled_run_keeps_the_names(
    small_task: Any, fit_config: FitConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Module, "compile", lambda self: self.__setattr__("compiled", True))
    run(small_task(), dataclasses.replace(fit_config, compile=True), tmp_path / "compiled")
    run(small_task(), fit_config, tmp_path / "eager")
    assert weights(tmp_path / "compiled").keys() == weights(tmp_path / "eager").keys()


def test_bfloat16_autocast_trains_float32_weights(
    small_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    run(small_task(), fit_config, tmp_path / "single")
    run(small_task(), dataclasses.replace(fit_config, dtype="bfloat16"), tmp_path / "half")
    left, right = weights(tmp_path / "single"), weights(tmp_path / "half")
    assert {right[name].dtype for name in right} == {torch.float32}
    assert not all(torch.equal(left[name], right[name]) for name in left)


def test_mfu_needs_a_peak(counted_task: Any, fit_config: FitConfig, tmp_path: Path) -> None:
    events: list[Event] = []
    run(counted_task(), fit_config, tmp_path / "none", on_event=events.append)
    assert not any("mfu" in event for event in events)
    config = dataclasses.replace(fit_config, peak_flops=1e6)
    run(counted_task(), config, tmp_path / "given", on_event=events.append)
    given = [event for event in events if "mfu" in event]
    assert len(given) == 12
    assert all(e["mfu"] == pytest.approx(e["tokens_per_second"] * 1e-3) for e in given)
