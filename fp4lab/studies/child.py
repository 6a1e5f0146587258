"""The child's side of a job: how it starts, reports and ends; and whether it can be sent at all."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import IO

import torch

from fp4lab.errors import InputError, describe
from fp4lab.specs.files import write_json

PROCESS_NAME = "fp4lab run"
#: exit code of a run that SIGTERM or Ctrl-C stopped between two steps, its checkpoint saved
STOPPED = 128 + signal.SIGTERM
#: exit code of a process that could not begin its run, for it met compare() in the user's script
UNGUARDED = 78


@dataclass(frozen=True)
class Job:
    """Something to run: `work(folder)` must write its results there, and go on with what is there.

    What it prints goes to the file `log`; the reason of its failure to one beside it. The folder
    itself belongs to the work.
    """

    name: str
    folder: Path
    log: Path
    work: Callable[[Path], None]
    steps: int
    threads: int

    @property
    def failure(self) -> Path:
        """Where the reason of a failure is left."""
        return self.log.with_suffix(".failure.json")


def run_child(job: Job) -> None:
    """What runs in the new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    torch.set_num_threads(job.threads)
    with job.log.open("a", encoding="utf-8") as log, _output_to(log):
        # A run that outlived its killed parent may still be saving a checkpoint in this folder.
        fcntl.flock(log, fcntl.LOCK_EX)
        try:
            failed = attempt(job) is not None
        except KeyboardInterrupt:
            sys.exit(STOPPED)
    if failed:
        sys.exit(1)


def attempt(job: Job) -> str | None:
    """Do the work; None, or the reason of its failure, which is also left beside the log."""
    try:
        job.work(job.folder)
    except Exception as error:
        reason = describe(error) or "no message"
        if not isinstance(error, (InputError, OSError)):
            reason = f"{type(error).__name__}: {reason}"
        # A full disk may be the reason, and takes neither log nor file.
        with contextlib.suppress(OSError):
            traceback.print_exc()
            write_json(job.failure, {"reason": reason})
        return reason
    return None


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _output_to(log: IO[str]) -> Iterator[None]:
    """Send what this process prints, libraries in C included, to `log`."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()


class _Pickler(pickle.Pickler):
    """Says in plain words what pickle takes by name and a new process could not find by it."""

    interactive = False

    def persistent_id(self, obj: object) -> None:
        if not isinstance(obj, (type, FunctionType)):
            return
        if "<lambda>" in obj.__qualname__:
            raise pickle.PicklingError("a lambda cannot be sent to another; write it with def")
        if "<locals>" in obj.__qualname__:
            outer, _, name = obj.__qualname__.rpartition(".<locals>.")
            raise pickle.PicklingError(
                f"{name} is defined inside {outer} and cannot be sent to another; define it outside"
            )
        if self.interactive and obj.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{obj.__qualname__} was defined interactively; define it in a file and import it"
            )
        # a function that was made by exec may have no module
        if obj.__module__ and not _is_found(obj.__module__.partition(".")[0]):
            raise pickle.PicklingError(
                f"a new process would not find the module {obj.__module__} that defines "
                f"{obj.__qualname__}; put its folder into PYTHONPATH and import it by that name"
            )


@cache
def _is_found(module: str) -> bool:
    """Whether an import in a new process, which is given this one's path, finds the module."""
    if module in ("__main__", "__mp_main__"):
        return True
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return any(finder.find_spec(module, None) is not None for finder in finders)


def unpicklable(work: object) -> str | None:
    """Why `work` cannot be sent to a new process, or None if it can."""
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    if main.__spec__ is None and script is not None and not Path(script).is_file():
        return f"a new process cannot import the main program {script}"
    try:
        with Path(os.devnull).open("wb") as nowhere:
            pickler = _Pickler(nowhere)
            pickler.interactive = main.__spec__ is None and script is None
            pickler.dump(work)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return str(error)
    return None


def end_unguarded_child() -> None:
    """End the process of a run which, as it imports the user's script, would start all runs again.

    The parent says so, with the cure: `UNGUARDED` is what it sees of this.
    """
    if multiprocessing.current_process().name.startswith(PROCESS_NAME):
        sys.exit(UNGUARDED)
