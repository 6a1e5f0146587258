"""One process at a time in a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fp4lab.errors import InputError

LOCK = ".lock"


@contextmanager
def only_one(folder: Path, *, argument: str, user: str) -> Iterator[None]:
    """Make the folder and keep other processes out of it; the lock ends with its process.

    The file of the lock stays: to delete it would let two in, one by the old and one by a new file.

    Raises InputError, which names the folder's `argument` and its `user`, "a run", if it is taken
    or cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise InputError(
            f"{argument}={folder} cannot be written ({error.strerror}); give a folder that can"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{argument}={folder} is in use by {user} that is still going; wait for its end, "
                "or give another folder"
            ) from None
        yield
