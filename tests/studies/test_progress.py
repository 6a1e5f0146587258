"""Progress read from growing metrics, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from study_fakes import FakeWork

from fp4lab.studies import progress
from fp4lab.studies.child import Job
from fp4lab.studies.progress import RunsProgress, Tail


def line(step: int, loss: float | None = 1.5) -> str:
    return json.dumps({"kind": "train", "step": step, "loss": loss}) + "\n"


def test_tail_takes_whole_lines_only_and_follows_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    tail.read()
    assert (tail.step, tail.loss) == (0, None)
    path.write_text(line(1) + line(2, 1.25) + line(3)[:10])
    tail.read()
    assert (tail.step, tail.loss) == (2, 1.25)
    with path.open("a") as file:
        file.write(line(3, 1.0)[10:] + '{"kind": "eval", "step": 9, "loss": 7}\n')
    tail.read()
    assert (tail.step, tail.loss) == (3, 1.0)
    path.write_text(line(1, 1.75))
    tail.read()
    assert (tail.step, tail.loss) == (1, 1.75)
    longer = tmp_path / "new"
    longer.write_text(line(1, 1.125) + line(2, 0.5))
    longer.replace(path)
    tail.read()
    assert (tail.step, tail.loss) == (2, 0.5)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that progress sees."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    return clock


def jobs_in(folder: Path) -> list[Job]:
    return [
        Job(name, folder / name, folder / "log", FakeWork(), 100, 1)
        for name in ("bf16-seed0", "nvfp4-seed0")
    ]


def write(job: Job, text: str) -> None:
    job.folder.mkdir(exist_ok=True)
    (job.folder / "metrics.jsonl").write_text(text)


def test_lines_where_there_is_no_terminal(tmp_path: Path, clock: list[float]) -> None:
    out = io.StringIO()
    jobs = jobs_in(tmp_path)
    write(jobs[0], line(20))  # from an earlier start: no part of the speed
    with RunsProgress(jobs, parallel=2, console=Console(file=out, width=200)) as shown:
        clock[0] += 5
        shown.poll()
        write(jobs[0], line(20) + line(60, 1.25))
        clock[0] += 5
        shown.poll()
        shown.failed("nvfp4-seed0", "NaN [at] step 3")
        clock[0] += 10
        shown.poll()
    assert out.getvalue().splitlines() == [
        "2 runs, 2 at a time, 200 steps: bf16-seed0, nvfp4-seed0",
        # 40 steps in the 5 s since the poll before; the other run's 100 take 12.5 s
        "10 s | 0 of 2 done | bf16-seed0 60/100 loss 1.250 | 0:12 left",
        "nvfp4-seed0 failed: NaN [at] step 3",
        # 40 steps to go, and nothing to expect of the run that failed
        "20 s | 1 of 2 done | bf16-seed0 60/100 loss 1.250 | 0:05 left",
    ]


def test_the_last_run_to_end_is_waited_for(tmp_path: Path, clock: list[float]) -> None:
    """Five runs of 100 steps, two at a time, one of them half as fast: not all cores stay busy."""
    jobs = [Job(name, tmp_path / name, tmp_path / "log", FakeWork(), 100, 1) for name in "abcde"]
    out = io.StringIO()
    with RunsProgress(jobs, parallel=2, console=Console(file=out, width=200)) as shown:
        for seconds in (5, 10):
            clock[0] = 100.0 + seconds
            write(jobs[0], "".join(line(step) for step in range(10 * seconds + 1)))
            write(jobs[1], "".join(line(step) for step in range(5 * seconds + 1)))
            shown.poll()
    # a is done and b has 10 s to go; c takes 15 s at 0.15 s a step, and e then 5 s more, to start
    assert out.getvalue().splitlines()[-1] == (
        "10 s | 1 of 5 done | b 50/100 loss 1.500 | 0:35 left"
    )


def test_the_first_steps_of_a_run_say_little(tmp_path: Path, clock: list[float]) -> None:
    out = io.StringIO()
    jobs = jobs_in(tmp_path)
    with RunsProgress(jobs, parallel=2, console=Console(file=out, width=200)) as shown:
        shown.poll()
        clock[0] += 9
        write(jobs[0], line(90))
        shown.poll()
        clock[0] += 1
        # a step a second so far, but the other's pace is known: 99 steps take 9.9 s
        write(jobs[1], line(1))
        shown.poll()
    assert out.getvalue().splitlines()[-1].endswith("| 0:10 left")


def test_a_run_that_goes_back_to_its_checkpoint(tmp_path: Path, clock: list[float]) -> None:
    """Steps beyond the checkpoint are made again: they must not count as a speed below zero."""
    out = io.StringIO()
    jobs = jobs_in(tmp_path)[:1]
    write(jobs[0], line(60))
    with RunsProgress(jobs, console=Console(file=out, width=200)) as shown:
        for seconds, step in ((5, 40), (5, 50), (10, 70)):
            clock[0] += seconds
            rewritten = jobs[0].folder / "new"
            rewritten.write_text(line(step))
            rewritten.replace(jobs[0].folder / "metrics.jsonl")
            shown.poll()
    assert [text.rpartition("| ")[2] for text in out.getvalue().splitlines()[1:]] == [
        "0:25 left",  # 10 steps in 5 s, 50 left
        "0:15 left",  # 30 steps in 15 s, 30 left
    ]


def test_a_notebook_gets_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    with RunsProgress(jobs_in(tmp_path)) as shown:
        shown.poll()
    assert out.getvalue() == "2 runs, 1 at a time, 200 steps: bf16-seed0, nvfp4-seed0\n"


def test_progress_that_cannot_be_shown_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr("sys.stderr", full)
        with RunsProgress(jobs_in(tmp_path)) as shown:
            shown.say("line")


def test_bars_on_a_terminal(tmp_path: Path) -> None:
    out = io.StringIO()
    jobs = jobs_in(tmp_path)
    console = Console(file=out, width=120, force_terminal=True)
    with RunsProgress(jobs, console=console) as shown:
        write(jobs[0], line(50, 1.25))
        shown.poll()
    text = out.getvalue()
    for part in ("bf16-seed0", "nvfp4-seed0", "all", "50/100", "50/200", "loss 1.250", "left"):
        assert part in text
