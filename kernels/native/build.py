"""Compiles the C operators into one shared library, with the standard library alone.

`setup.py` runs this when the package is built, `library.py` at first use in a checkout. Every
instruction set is compiled from the same sources into its own object, its functions named after it;
`detect.c` says at run time which of them the processor has. What a compiler cannot do is left out
(an instruction set that it does not know, OpenMP); only without any is there no library.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parent
#: -ffp-contract=off and no -ffast-math: every operation rounds as it is written; numbers are also
#: read as the words that hold them
FLAGS = (
    *("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-std=gnu11"),
    *("-fno-strict-aliasing", "-fPIC", "-fvisibility=hidden"),
)
#: name of each instruction set, and what makes a compiler use it
X86 = {
    "v2": ("-march=x86-64-v2",),
    "v3": ("-march=x86-64-v3",),
    "v4": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
}
PLAIN: dict[str, tuple[str, ...]] = {"plain": ()}


def source_hash() -> str:
    """Of all C sources and the flags: an edited source never meets an old library."""
    digest = hashlib.sha256(repr((FLAGS, X86)).encode())
    for path in sorted((*KERNELS.glob("*/*.c"), *KERNELS.glob("*/*.h"))):
        digest.update(f"{path.parent.name}/{path.name}".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def compiler() -> list[str]:
    """`$CC` with its arguments, cc or gcc; RuntimeError where there is none."""
    found = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if found is None:
        raise RuntimeError("no C compiler (cc, gcc or $CC) was found")
    try:
        return shlex.split(found)
    except ValueError as error:
        raise RuntimeError(f"CC={found!r} cannot be read: {error}") from None


def compile_library(target: Path, *extra: str) -> None:
    """Compile and link everything into `target`, which appears only when it is complete.

    `extra` are further flags, such as those of a sanitizer. RuntimeError says what failed.
    """
    tools = compiler()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        folder = Path(scratch)
        threads = ("-fopenmp",) if _accepts(tools, folder, "-fopenmp") else ()
        flags = (*FLAGS, *threads, *extra)
        sets = X86 if platform.machine() in ("x86_64", "AMD64") else PLAIN
        detect = [*tools, "-c", *flags, f'-DSOURCES="{source_hash()}"', str(HERE / "detect.c")]
        commands = {"detect": detect} | {
            name: [*tools, "-c", *flags, *march, f"-DISA={name}", str(HERE / "library.c")]
            for name, march in sets.items()
            if not march or _accepts(tools, folder, march[0])
        }
        objects = [_started(command, folder / f"{name}.o") for name, command in commands.items()]
        for process, made in objects:
            _finished(process, made)
        made = folder / target.name
        link = [*tools, "-shared", *flags, *(str(path) for _, path in objects), "-lm"]
        _finished(*_started(link, made))
        made.replace(target)


def _accepts(tools: list[str], folder: Path, *flags: str) -> bool:
    """Whether a library can be made with these flags."""
    source = folder / "empty.c"
    source.write_text("int empty;\n")
    command = [*tools, "-shared", "-fPIC", *flags, "-o", str(folder / "empty.so"), str(source)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError as error:
        raise RuntimeError(f"the C compiler {tools[0]!r} cannot be run: {error.strerror}") from None


def _started(command: list[str], made: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [*command, "-o", str(made)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, made


def _finished(process: subprocess.Popen[str], made: Path) -> None:
    _, errors = process.communicate()
    if process.returncode:
        said = errors[-300:] or f"it ended with status {process.returncode} and said nothing"
        raise RuntimeError(f"the C compiler failed on {made.name}: {said}")
