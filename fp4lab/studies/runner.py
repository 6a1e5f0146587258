"""Jobs in processes of their own, so that the death of one leaves the others alone.

A job writes into its folder and can be started again there: it then continues. The parent learns
of the end from the exit code alone: 0 is success; a signal (kill -9, out of memory) earns one more
start, from the job's own checkpoint; an exception is left in a file and is final, as the
same inputs would raise it again. Processes are spawned, not forked: a fork of a process whose
thread pools run may hang.

Ctrl-C reaches the whole terminal group; children ignore it and the parent ends them, by id, with
SIGTERM (they save a checkpoint) and after `GRACE` seconds with SIGKILL. A child whose parent
vanished ends itself in the same way.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Protocol

import torch

from fp4lab.studies.child import PROCESS_NAME, STOPPED, UNGUARDED, Job, attempt, run_child

GRACE = 20.0
POLL = 0.5


class Watch(Protocol):
    """Told of what happens to the jobs, often enough to draw progress."""

    def poll(self) -> None:
        """Called about twice a second."""

    def say(self, line: str) -> None:
        """A line for the user."""

    def failed(self, name: str, reason: str) -> None:
        """Called when a job has failed for good."""


@dataclass
class _Live:
    job: Job
    process: SpawnProcess
    restarted: bool


def run_jobs(jobs: Sequence[Job], *, parallel: int, watch: Watch) -> dict[str, str | None]:
    """Run all jobs, at most `parallel` at a time, each in a new process.

    Returns for each job's name None, or the reason why it failed. Raises what interrupts it
    (KeyboardInterrupt) after ending its processes.
    """
    waiting: deque[tuple[Job, bool]] = deque((job, False) for job in jobs)
    live: list[_Live] = []
    outcomes: dict[str, str | None] = {}
    try:
        while waiting or live:
            while waiting and len(live) < parallel:
                live.append(_start(*waiting.popleft()))
            wait([child.process.sentinel for child in live], timeout=POLL)
            watch.poll()
            for child in [child for child in live if not child.process.is_alive()]:
                live.remove(child)
                again, reason = _judge(child)
                if again:
                    watch.say(f"{child.job.name}: {reason}; continuing from its checkpoint")
                    waiting.appendleft((child.job, True))
                    continue
                outcomes[child.job.name] = reason
                if reason:
                    watch.failed(child.job.name, reason)
    finally:
        _end([child.process for child in live])
    return outcomes


def run_here(jobs: Sequence[Job], *, watch: Watch) -> dict[str, str | None]:
    """Run the jobs one after another in this process, for work that cannot be sent to another."""
    outcomes: dict[str, str | None] = {}
    for job in jobs:
        _make_room(job)
        with _threads(job.threads), _polling(watch):
            outcomes[job.name] = attempt(job)
        if reason := outcomes[job.name]:
            watch.failed(job.name, reason)
    return outcomes


def _start(job: Job, restarted: bool) -> _Live:
    _make_room(job)
    process = multiprocessing.get_context("spawn").Process(
        target=run_child, args=(job,), name=f"{PROCESS_NAME} {job.name}"
    )
    process.start()
    return _Live(job, process, restarted)


def _make_room(job: Job) -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    job.failure.unlink(missing_ok=True)


def _judge(child: _Live) -> tuple[bool, str | None]:
    """Whether to start a dead child again, and what to say of it (None: it succeeded)."""
    child.process.join()
    code = child.process.exitcode
    child.process.close()
    if code == 0:
        return False, None
    assert code is not None
    if code < 0 or code == STOPPED:
        number = signal.SIGTERM if code == STOPPED else -code
        reason = f"killed by {signal.Signals(number).name}"
        return not child.restarted, reason + (" twice" if child.restarted else "")
    if code == UNGUARDED:
        return False, (
            "its process imports your script, which calls compare() there again; put the call "
            'under `if __name__ == "__main__":`'
        )
    if child.job.failure.is_file():
        return False, str(json.loads(child.job.failure.read_bytes())["reason"])
    if not child.job.log.is_file():
        return False, (
            f"exit code {code} before it began, for the reason printed above: its process imports "
            "anew the modules that define the model, the batches and the loss, and must be able to"
        )
    return False, f"exit code {code}; see {child.job.log}"


def _end(processes: Sequence[SpawnProcess]) -> None:
    """End exactly these processes: SIGTERM, and SIGKILL for those that do not follow."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(GRACE)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _polling(watch: Watch) -> Iterator[None]:
    """Poll from a thread while this one works."""
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(POLL):
            watch.poll()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        watch.poll()
