"""Finds, compiles and loads the library of C operators, and gives its functions out.

A library that was built with the package is used where its sources are those that lie beside it;
otherwise (an editable checkout, an edited source) one is compiled at first use into the user's
cache, under the hash of its sources. Where that fails, one warning says so, and torch computes the
same bits.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from fp4lab.kernels.native import build

#: where `setup.py` puts the library that is built with the package
PACKAGED = Path(__file__).with_name("libfp4lab.so")
#: why a library that was built with the package is not used, although it is whole
STALE = "it was made from other sources than those that lie beside it"
#: the instruction sets by level, see `detect.c`
LEVELS = {1: "plain", 2: "v2", 3: "v3", 4: "v4"}
#: the reason that was told; filled before the warning, which may be an error to the caller
_told: list[str] = []


def load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and the reason (with one warning)."""
    library, reason = _found()
    if library is None and not _told:
        _told.append(reason)
        warnings.warn(
            "fp4lab computes without its C operators, which give the same results in a tenth of "
            f"the time or less: {reason}",
            stacklevel=2,
        )
    return library, reason


@cache
def _found() -> tuple[ctypes.CDLL | None, str]:
    try:
        return packaged()[0] or ctypes.CDLL(str(_compiled())), ""
    except RuntimeError as error:
        return None, f"{' '.join(str(error).split())}; install a C compiler or set CC"
    except OSError as error:
        # without a number where the library could not be opened
        cure = "set XDG_CACHE_HOME to a folder that can be written" if error.errno else "set CC"
        return None, f"{' '.join(str(error).split())}; {cure}"


def packaged() -> tuple[ctypes.CDLL | None, str]:
    """The library that was built with the package, or None and why it is not used.

    A file that was cut short may end the process, and one that is not there has no reason.
    """
    if not PACKAGED.exists():
        return None, ""
    try:
        found = ctypes.CDLL(str(PACKAGED))
        if _sources(found) == build.source_hash():
            return found, ""
    except (OSError, ValueError) as error:
        # a ValueError where it is another library
        return None, " ".join(str(error).split())
    return None, STALE


def location() -> Path | None:
    """The file of the library in use, or None."""
    found = load()[0]
    return None if found is None else Path(found._name)


def _sources(library: ctypes.CDLL) -> str:
    text: bytes = ctypes.string_at(
        ctypes.addressof(ctypes.c_char.in_dll(library, "fp4lab_sources"))
    )
    return text.decode()


def cache_folder() -> Path:
    """Where a library is compiled into at first use."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fp4lab"


def _target() -> Path:
    """One file for each state of the sources, kind of processor and compiler command."""
    made_of = f"{build.source_hash()} {platform.machine()} {build.compiler()}"
    key = hashlib.sha256(made_of.encode()).hexdigest()[:20]
    return cache_folder() / f"libfp4lab-{key}.so"


def _compiled() -> Path:
    target = _target()
    if not _is_whole(target):
        print("fp4lab: compiling its C operators, once", file=sys.stderr, flush=True)
        build.compile_library(target)
        _digest_of(target).write_text(_digest(target), encoding="ascii")
    return target


def _is_whole(library: Path) -> bool:
    """Whether it is what was compiled: to load a part of one would end the process."""
    try:
        return _digest_of(library).read_text(encoding="ascii") == _digest(library)
    except (OSError, UnicodeDecodeError):
        return False


def _digest_of(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


@cache
def instruction_sets() -> tuple[str, ...]:
    """Those that are compiled and this processor has, the best last; empty without a library."""
    library, _ = load()
    if library is None:
        return ()
    level: int = library.fp4lab_level()
    return tuple(
        name
        for number, name in LEVELS.items()
        if number <= level and hasattr(library, f"fp4lab_quantize_{name}")
    )


@cache
def function(name: str, instruction_set: str = "") -> Any:
    """A C function by its name, of one of `instruction_sets` or the best of them."""
    return getattr(load()[0], f"fp4lab_{name}_{instruction_set or instruction_sets()[-1]}")
