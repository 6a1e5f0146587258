"""Output that is there whole or not at all: a file or a folder, written beside and renamed.

What is written lies in `.NAME.PID.tmp` beside the target, locked by its writer. A process that is
killed leaves it; the next one that writes the same target finds it unlocked and deletes it. A
folder cannot take the place of another in one step: the old one is renamed to `.NAME.PID.old` for
an instant, and put back by the next writer if that instant was the last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fp4lab.errors import InputError


@contextmanager
def replacing(
    target: Path, *, folder: bool, overwrite: bool, ours: Callable[[Path], bool]
) -> Iterator[Path]:
    """A path to write to, which becomes `target` when the block ends, and is gone if it fails.

    Args:
        target: the file or folder.
        folder: which of them; the path is then an empty folder.
        overwrite: whether something that is there may be replaced.
        ours: whether an existing folder was written by this package; no other is ever deleted.

    Raises:
        InputError: the target exists and may not be replaced, or is being written by another.
        OSError: it cannot be written.
    """
    check_target(target, folder=folder, overwrite=overwrite, ours=ours)
    target.parent.mkdir(parents=True, exist_ok=True)
    _clean(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if folder:
            temporary.mkdir()
        else:
            temporary.touch()
        with _locked(temporary) as held:
            assert held
            yield temporary
            _sync(temporary)
            _put(temporary, target)
    except BaseException:
        remove(temporary)
        raise
    _sync_one(target.parent)


def check_target(
    target: Path, *, folder: bool, overwrite: bool, ours: Callable[[Path], bool]
) -> None:
    """InputError unless the target is free, or may be replaced; before any work is done."""
    shown = f"out={str(target)!r}"
    if target.is_symlink():
        raise InputError(f"{shown} is a symbolic link; give the path that it points to")
    if not target.name:
        raise InputError(f"{shown} has no name of its own; give a new name")
    above = next(path for path in target.absolute().parents if path.exists())
    if not above.is_dir():
        raise InputError(f"{shown} cannot be made, for {str(above)!r} is no folder; give another")
    if not target.exists():
        return
    if target.is_dir() != folder or not (target.is_dir() or target.is_file()):
        needed = "folder" if folder else "file"
        raise InputError(f"{shown} is there and no {needed}; give the name of a new {needed}")
    if not overwrite:
        raise InputError(f"{shown} is there already; add --overwrite, or give another name")
    if folder and not ours(target):
        raise InputError(
            f"{shown} is a folder that fp4lab did not write, and is not deleted; give another name"
        )


def _put(temporary: Path, target: Path) -> None:
    if not target.is_dir():
        temporary.replace(target)
        return
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    target.rename(old)
    try:
        temporary.rename(target)
    except OSError:
        old.rename(target)
        raise
    remove(old)


def _clean(target: Path) -> None:
    """Put back or delete what killed writers of this target left."""
    names = re.compile(rf"\.{re.escape(target.name)}\.\d+\.(tmp|old)")
    for path in sorted(target.parent.iterdir()):
        if not (match := names.fullmatch(path.name)) or path.is_symlink():
            continue
        if match[1] == "old" and not target.exists():
            path.rename(target)
            continue
        with _locked(path) as held:
            if not held:
                raise InputError(
                    f"out={str(target)!r} is being written by another process; wait for its end, "
                    "or give another name"
                )
            remove(path)


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether the lock of a file or folder could be taken; it ends with the process."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _sync(path: Path) -> None:
    for inner in path.rglob("*") if path.is_dir() else ():
        _sync_one(inner)
    _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
