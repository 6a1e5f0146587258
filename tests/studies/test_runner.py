"""Runs die in every way; the others must not notice."""

from __future__ import annotations

import errno
import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from study_fakes import FakeWork, Silent

from fp4lab.studies.child import Job, unpicklable
from fp4lab.studies.runner import run_here, run_jobs


def jobs_in(folder: Path, **works: FakeWork) -> list[Job]:
    return [
        Job(name, folder / name, folder / "logs" / f"{name}.txt", work, work.steps, 1)
        for name, work in works.items()
    ]


def starts(folder: Path, name: str) -> list[int]:
    return [int(line) for line in (folder / name / "starts.txt").read_text().split()]


def steps(folder: Path, name: str) -> list[int]:
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_a_killed_run_goes_on_and_the_others_never_notice(tmp_path: Path) -> None:
    watch = Silent()
    jobs = jobs_in(tmp_path, once=FakeWork(die="kill once"), fine=FakeWork())
    assert run_jobs(jobs, parallel=2, watch=watch) == {"once": None, "fine": None}
    for name in ("once", "fine"):
        assert steps(tmp_path, name) == [1, 2, 3, 4]
    assert len(set(starts(tmp_path, "once"))) == 2
    assert watch.polls > 0
    assert watch.lines == ["once: killed by SIGKILL; continuing from its checkpoint"]
    assert os.getpid() not in starts(tmp_path, "fine")


@pytest.mark.slow
def test_deaths_for_good_have_reasons(tmp_path: Path) -> None:
    watch = Silent()
    jobs = jobs_in(
        tmp_path,
        fine=FakeWork(),
        always=FakeWork(die="kill every time"),
        nan=FakeWork(die="nan"),
        exits=FakeWork(die="exit"),
    )
    outcomes = run_jobs(jobs, parallel=2, watch=watch)
    log = tmp_path / "logs" / "exits.txt"
    assert outcomes == {
        "fine": None,
        "always": "killed by SIGKILL twice",
        "nan": "NonFiniteError: step 2: layer 'blocks.0' gave a NaN in its output",
        "exits": f"exit code 3; see {log}",
    }
    assert watch.failures == {name: reason for name, reason in outcomes.items() if reason}
    assert len(starts(tmp_path, "always")) == 2
    assert len(starts(tmp_path, "nan")) == 1
    assert os.getpid() not in starts(tmp_path, "fine")
    assert log.read_text() == "leaving\n"
    assert "Traceback" in (tmp_path / "logs" / "nan.txt").read_text()


def test_an_exception_ends_the_processes(tmp_path: Path) -> None:
    """What interrupts the parent, Ctrl-C or a bug of its own, leaves no process behind."""
    before = set(multiprocessing.active_children())

    class Interrupting(Silent):
        def poll(self) -> None:
            if (tmp_path / "long" / "starts.txt").is_file():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(
            jobs_in(tmp_path, long=FakeWork(steps=10**6, sleep=0.05)),
            parallel=1,
            watch=Interrupting(),
        )
    assert set(multiprocessing.active_children()) == before
    (process,) = starts(tmp_path, "long")
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_runs_in_this_process_when_asked(tmp_path: Path) -> None:
    watch = Silent()
    jobs = jobs_in(tmp_path, fine=FakeWork(), bad=FakeWork(die="input"), late=FakeWork())
    outcomes = run_here(jobs, watch=watch)
    assert outcomes == {"fine": None, "bad": "steps=0 must be positive; use 1", "late": None}
    assert starts(tmp_path, "fine") == [os.getpid()]
    assert watch.failures == {"bad": "steps=0 must be positive; use 1"}
    assert json.loads(jobs[1].failure.read_text()) == {"reason": outcomes["bad"]}


def test_a_full_disk_is_a_reason_though_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("fp4lab.studies.child.write_json", full)
    outcomes = run_here(jobs_in(tmp_path, full=FakeWork(die="full")), watch=Silent())
    assert str(outcomes["full"]).startswith("metrics.jsonl: No space left on device; what was")


def test_what_can_be_sent_to_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unpicklable(FakeWork()) is None

    def local() -> None: ...

    where = "test_what_can_be_sent_to_a_process"
    reasons = {
        "a lambda cannot be sent to another; write it with def": lambda: 0,
        f"local is defined inside {where} and cannot be sent to another; define it outside": local,
    }
    for reason, function in reasons.items():
        assert unpicklable([FakeWork(), function]) == reason
    spec = importlib.util.spec_from_file_location("loaded_by_its_path", __file__)
    assert spec is not None
    stranger = importlib.util.module_from_spec(spec)
    exec("def build(): ...", vars(stranger))
    monkeypatch.setitem(sys.modules, "loaded_by_its_path", stranger)
    assert unpicklable([FakeWork(), stranger.build]) == (
        "a new process would not find the module loaded_by_its_path that defines build; put its "
        "folder into PYTHONPATH and import it by that name"
    )
    assert unpicklable(threading.Lock()) is not None


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["-c", "{code}"], ["-"]])
def test_what_was_typed_into_a_session_cannot_be_sent(arguments: list[str]) -> None:
    """Pickle takes such a function by name, and the child would fail to import it."""
    code = (
        "from fp4lab.studies.child import unpicklable\n"
        "def build(): ...\n"
        "print(unpicklable(build))\n"
    )
    command = [sys.executable, *(argument.format(code=code) for argument in arguments)]
    result = subprocess.run(command, input=code, capture_output=True, text=True, check=True)
    reasons = ("build was defined interactively", "cannot import the main program <stdin>")
    assert any(reason in result.stdout for reason in reasons)


@pytest.mark.slow
def test_a_process_that_cannot_begin_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A module that can be found and not be imported there."""
    text = (Path(__file__).with_name("study_fakes.py")).read_text()
    (tmp_path / "once.py").write_text(f"{text}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    once = importlib.import_module("once")
    (tmp_path / "once.py").write_text("raise RuntimeError('not here')\n")
    jobs = jobs_in(tmp_path, bad=once.FakeWork())
    assert unpicklable(jobs[0].work) is None
    outcomes = run_jobs(jobs, parallel=1, watch=Silent())
    assert outcomes["bad"] == (
        "exit code 1 before it began, for the reason printed above: its process imports anew the "
        "modules that define the model, the batches and the loss, and must be able to"
    )
    assert "RuntimeError: not here" in capfd.readouterr().err


@pytest.mark.slow
def test_children_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from study_fakes import FakeWork, Silent\n"
        "from fp4lab.studies.runner import run_jobs\n"
        "from fp4lab.studies.child import Job\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "work = FakeWork(steps=10**6, sleep=0.05)\n"
        "run_jobs([Job('a', folder, folder / 'log.txt', work, 1, 1)], parallel=1, watch=Silent())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        child = _wait_for_pid(tmp_path / "starts.txt")
        parent.send_signal(signal.SIGKILL)
        for _ in range(200):
            if _is_gone(child):
                break
            time.sleep(0.05)
        assert _is_gone(child)
    finally:
        parent.kill()
        parent.wait()


def _wait_for_pid(path: Path) -> int:
    for _ in range(600):
        if path.is_file() and path.read_text().endswith("\n"):
            return int(path.read_text())
        time.sleep(0.05)
    raise AssertionError("the child never started")


def _is_gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return not status.exists() or "State:\tZ" in status.read_text()
