"""Files that are either the old or the new version at any instant, even when the power fails."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fp4lab.errors import InputError
from fp4lab.specs.plain import from_plain

T = TypeVar("T")
_TEMPORARY = re.compile(r"\.(.+)\.\d+\.tmp")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the name of a file into the OSError of a write to it, which leaves it out.

    >>> with naming(Path("metrics.jsonl")):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    OSError: [Errno 28] No space left on device: 'metrics.jsonl'
    """
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def sync(path: Path) -> None:
    """Force a file's bytes, or a folder's list of names, onto the disk."""
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def beside(path: Path) -> Path:
    """Where a file is written until `put` gives it its name; `remove_leftovers` knows it."""
    return path.parent / f".{path.name}.{os.getpid()}.tmp"


def put(path: Path) -> None:
    """Give what was written `beside` a path its name, and the mode of an older file of that name.

    It is on the disk then.
    """
    temporary = beside(path)
    if path.exists():
        temporary.chmod(stat.S_IMODE(path.stat().st_mode))
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A sibling to write to, which replaces the file at once when the block ends.

    It is gone if the block fails, and the file as it was; an OSError names the file. A new file has
    the usual mode, whatever that of the sibling is.

    >>> with replacing(Path("result.bin")) as temporary:
    ...     _ = temporary.write_bytes(b"whole")
    >>> Path("result.bin").read_bytes()
    b'whole'
    """
    temporary = beside(path)
    try:
        # what a killed process of the same number left, or what is no file
        temporary.unlink(missing_ok=True)
        temporary.touch(exist_ok=False)
        usual = stat.S_IMODE(temporary.stat().st_mode)
        yield temporary
        # safetensors writes files that only their owner can read
        temporary.chmod(usual)
        put(path)
    except OSError as error:
        if error.filename in {None, str(temporary)}:
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace a file at once: on failure nothing changes."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def intended(name: str) -> str:
    """The name of the file that a leftover of a killed `replacing` was to become, or its own.

    >>> intended(".result.json.123.tmp"), intended("result.json")
    ('result.json', 'result.json')
    """
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match else name


def strangers(folder: Path, known: set[str]) -> list[str]:
    """What lies in a folder besides `known` names and their half-written versions."""
    return sorted({intended(path.name) for path in folder.iterdir()} - known)


def remove_leftovers(folder: Path) -> None:
    """Delete what killed calls of `replacing` left in a folder that no other process writes to."""
    for path in folder.glob(".*.tmp"):
        if path.is_file() and intended(path.name) != path.name:
            path.unlink()


def write_json(path: Path, value: Any) -> None:
    """`write_text` of indented JSON; floats round-trip exactly, NaN is refused."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_record(path: Path, kind: type[T], *, cure: str, version: int | None = None) -> T:
    """The dataclass `kind` in a JSON file, with `schema_version` if one is asked for.

    Raises InputError, which ends with `cure`, for a file that is missing, is not JSON, is of
    another version, or has not exactly the fields of `kind` with values of their types.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path} is missing; {cure}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged: {error}; {cure}") from None
    found = value.get("schema_version") if isinstance(value, dict) else None
    if version is not None and found != version:
        raise InputError(
            f"{path} has schema_version={found!r}, this fp4lab reads {version}; {cure}"
        )
    try:
        return from_plain(kind, value, path=path.stem)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}; {cure}") from None


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
