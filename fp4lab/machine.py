"""The machine: its processor, memory, load and limits; what runs on it, and who computes."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from fp4lab.kernels import backends
from fp4lab.kernels.native import library

#: where control groups are mounted, and which of them a process is in
CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
#: memory limits of this size or more, in bytes, are version 1's way to say that there is none
NO_LIMIT = 1 << 62


def cpu_name() -> str:
    """The processor's own name, or its architecture where the system tells no more."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())


def instructions() -> dict[str, Any]:
    """What torch computes with here, and whether there are instructions for bfloat16 products."""
    return {
        "isa": torch.backends.cpu.get_cpu_capability(),
        "avx512_bf16": bool(torch.cpu._is_avx512_bf16_supported()),
        "amx": bool(torch.cpu._is_amx_tile_supported()),
    }


def backend_in_force(device: torch.device) -> dict[str, Any]:
    """Who computes, the instruction sets that C has here and uses, and why C does not compute.

    Raises:
        InputError: the backend that is forced cannot be had.
    """
    name, there = backends.chosen(device), library.instruction_sets()
    used, reason = None, ""
    if name == "native":
        used = backends.instruction_set() or there[-1]
    elif device.type == "cpu" and not backends.forced():
        reason = library.load()[1]
    return {
        "backend": name,
        "instruction_sets": list(there),
        "instruction_set": used,
        "backend_reason": reason,
    }


def load_average() -> list[float] | None:
    """Processes that ran or waited, averaged over 1, 5 and 15 minutes."""
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except (AttributeError, OSError):
        return None


def usable_cores() -> int:
    """The cores that the system lets this process run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def core_limit() -> float | None:
    """Cores' worth of time that the control groups of this process allow it; None without limit."""
    found = []
    for folder in _groups("cpu"):
        # "200000 100000" or "max 100000"; in version 1 two files, with -1 for no limit
        both = _text(folder / "cpu.max").split() or [
            _text(folder / "cpu.cfs_quota_us"),
            _text(folder / "cpu.cfs_period_us"),
        ]
        if all(map(str.isdigit, both)):
            found.append(int(both[0]) / int(both[1]))
    return min(found, default=None)


def memory_limit() -> int | None:
    """Bytes that the control groups of this process allow it; None without limit."""
    texts = [
        _text(folder / name)
        for folder in _groups("memory")
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    return min((int(t) for t in texts if t.isdigit() and int(t) < NO_LIMIT), default=None)


def memory() -> int | None:
    """Bytes of the machine's memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def git_revision(folder: Path) -> str | None:
    """The commit of the checkout that holds `folder`, with "+changes" if files differ from it.

    None if git or the checkout is missing, or if the folder lies in one without being part of it,
    as site-packages inside a project's virtual environment does.
    """
    if _git(folder, "ls-files", ".") in (None, ""):
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    return commit and commit + ("+changes" if _git(folder, "status", "--porcelain", ".") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _groups(controller: str) -> list[Path]:
    """The folders that limit this process: those of its groups and of the groups around them.

    Inside a container a group's own folder is often the mount itself, by whatever name the process
    is listed; folders that are not there say nothing.
    """
    folders = []
    for line in _text(MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controller if controllers else CGROUPS
        own = root / path.strip("/")
        folders += [own, *(up for up in own.parents if up.is_relative_to(root))]
    return folders


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
