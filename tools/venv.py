"""Makes `.venv` with fp4lab installed in it, editable and with pinned versions; for `make`.

A stamp inside `.venv` says where it was made and from which pyproject.toml and constraints.txt.
While the stamp holds there is nothing to do. A virtual environment contains absolute paths, so one
that was made at another place (a moved checkout), or has no stamp (an interrupted set-up), is made
anew; after a change of the two files the packages are installed over it, which needs no network
unless a package is missing. The lock is the kernel's, not the file's: a killed set-up leaves none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "stamp"
SOURCES = ("pyproject.toml", "constraints.txt")
EXTRAS = "test,peers,data,interop,tensorboard,wandb,notebooks,docs,dev"


def expected_stamp() -> list[str]:
    """The stamp's lines: the place of the checkout, and the hash of what is to be installed."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((ROOT / name).read_bytes())
    return [str(ROOT), digest.hexdigest()]


def found_stamp() -> list[str]:
    """The lines of the stamp, empty when `.venv` was never finished or its Python is gone."""
    if not (STAMP.is_file() and os.access(PYTHON, os.X_OK)):
        return []
    return STAMP.read_text().splitlines()


def pip_install(*arguments: str) -> None:
    """Install into `.venv`; pip shows its progress on a terminal and only its errors elsewhere.

    Modules are compiled when they are first imported, not all now: that takes half of the time.
    """
    quiet = [] if sys.stdout.isatty() else ["-qq"]
    command = [str(PYTHON), "-m", "pip", "install", *quiet, "--no-compile"]
    subprocess.run([*command, "-c", "constraints.txt", *arguments], cwd=ROOT, check=True)


def build(*, anew: bool) -> None:
    """Create `.venv` where needed and install; setuptools first, for the build uses that one."""
    if anew:
        if VENV.is_symlink() or VENV.is_file():
            VENV.unlink()
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    pip_install("setuptools")
    pip_install("--no-build-isolation", "--editable", f".[{EXTRAS}]")
    STAMP.write_text("\n".join(expected_stamp()) + "\n")


def main() -> int:
    """Bring `.venv` up to date; 0 when it is, 1 with one line when that is not possible."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this is the check that refuses an older Python
        version = "{}.{}".format(*sys.version_info)
        cure = "name a newer one: make PYTHON=python3.11"
        print(f"Python {version} is too old for fp4lab; {cure}", file=sys.stderr)
        return 1
    with open(ROOT / ".venv.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another make that is setting up .venv ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        expected, found = expected_stamp(), found_stamp()
        if found == expected:
            return 0
        anew = found[:1] != expected[:1]
        print(f"setting up .venv ({'from nothing' if anew else 'its packages'}) ...", flush=True)
        start = time.monotonic()
        try:
            build(anew=anew)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"the set-up of .venv failed, and make will try again: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("the set-up of .venv was interrupted; make will start it again", file=sys.stderr)
            return 130
        print(f"setting up .venv: {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
