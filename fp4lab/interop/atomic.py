"""Output that is there whole or not at all: a file or a folder, written beside and renamed.

What is written lies in `.NAME.PID.tmp` beside the target, locked by its writer. A process that is
killed leaves it; the next one that writes the same target finds it unlocked and deletes it. A
folder cannot take the place of another in one step: the old one is renamed to `.NAME.PID.old` for
an instant, and put back by the next writer if that instant was the last.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from fp4lab.errors import InputError

#: of a folder, what lies in it that was not written here; "" where all of it was
Foreign: TypeAlias = Callable[[Path], str]
#: longer names leave no room for what is added to them
LONGEST_NAME = 200


@contextmanager
def replacing(
    target: Path, *, folder: bool, overwrite: bool, foreign: Foreign, argument: str = "out"
) -> Iterator[Path]:
    """A path to write to, which becomes `target` when the block ends, and is gone if it fails.

    Args:
        target: the file or folder. It gets the mode of an older one, or the usual mode of a new.
        folder: which of them; the path is then an empty folder.
        overwrite: whether something that is there may be replaced.
        foreign: what in an existing folder this package did not write; such a folder stays.
        argument: what messages call the target.

    Raises:
        InputError: the target exists and may not be replaced, also where it came to be in the
            meantime, or is being written by another.
        OSError: it cannot be written; the error names the target.
    """

    def check() -> None:
        check_target(target, folder=folder, overwrite=overwrite, foreign=foreign, argument=argument)

    check()
    temporary = _beside(target, "tmp")
    with _naming(target, temporary):
        target.parent.mkdir(parents=True, exist_ok=True)
        _clean(target, argument)
        # what a killed writer had set aside is there again
        check()
        if folder:
            temporary.mkdir()
        else:
            temporary.touch(exist_ok=False)
        try:
            with _locked(temporary) as held:
                assert held
                yield temporary
                _sync(temporary)
                check()
                _put(temporary, target)
        except BaseException:
            remove(temporary)
            raise
        _sync_one(target.parent)


def check_target(
    target: Path, *, folder: bool, overwrite: bool, foreign: Foreign, argument: str = "out"
) -> None:
    """InputError unless the target is free, or may be replaced; before any work is done."""
    shown = f"{argument}={str(target)!r}"
    if target.name in ("", ".."):
        raise InputError(f"{shown} has no name of its own; give a new name")
    if target.is_symlink():
        raise InputError(f"{shown} is a symbolic link; give the path that it points to")
    above = next(path for path in target.absolute().parents if path.exists())
    if not above.is_dir():
        raise InputError(f"{shown} cannot be made, for {str(above)!r} is no folder; give another")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{shown} cannot be made, for {str(above)!r} is read-only; give another")
    if not target.exists():
        return
    if target.is_dir() != folder or not (target.is_dir() or target.is_file()):
        needed = "folder" if folder else "file"
        raise InputError(f"{shown} is there and no {needed}; give the name of a new {needed}")
    if not overwrite:
        raise InputError(f"{shown} is there already; add overwrite=True, or give another name")
    if folder and (found := foreign(target)):
        raise InputError(
            f"{shown} holds {found!r}, which fp4lab did not write there, and is not deleted; move "
            "it away, or give another name"
        )


def _beside(target: Path, kind: str, *, process: str = "") -> Path:
    """Where what is to be the target lies until then, or the old one for an instant."""
    name = target.name
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return target.with_name(f".{name}.{process or os.getpid()}.{kind}")


@contextmanager
def _naming(target: Path, temporary: Path) -> Iterator[None]:
    """Name the target in an OSError, not the name that it has until it is whole."""
    try:
        yield
    except OSError as error:
        # what a write raises names no file
        if error.filename is None or str(error.filename).startswith(str(temporary)):
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise


def _put(temporary: Path, target: Path) -> None:
    if target.exists():
        temporary.chmod(stat.S_IMODE(target.stat().st_mode))
    if not target.is_dir():
        temporary.replace(target)
        return
    old = _beside(target, "old")
    try:
        target.rename(old)
        temporary.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    remove(old)


def _clean(target: Path, argument: str) -> None:
    """Put back or delete what killed writers of this target left."""
    number = "<process>"
    pattern = re.escape(_beside(target, "", process=number).name).replace(number, r"\d+")
    for path in sorted(target.parent.iterdir()):
        # a pipe of such a name was not left by a writer, and opening it would wait for ever
        match = re.fullmatch(pattern + "(tmp|old)", path.name)
        if not match or path.is_symlink() or not (path.is_dir() or path.is_file()):
            continue
        if match[1] == "old" and not target.exists():
            path.rename(target)
            continue
        with _locked(path) as held:
            if not held:
                raise InputError(
                    f"{argument}={str(target)!r} is being written by another process; wait for its "
                    "end, or give another name"
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
