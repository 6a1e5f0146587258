"""On what a run was made: versions, machine and git revision, kept in its folder."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fp4lab
from fp4lab.train.world import World


def describe(world: World) -> dict[str, Any]:
    """Everything outside the config that can change a bit of the result, as JSON.

    `git` is null where the package is not part of a git checkout.
    """
    device = world.device
    on_gpu = device.type == "cuda"
    return {
        "fp4lab": fp4lab.__version__,
        "git": git_revision(Path(fp4lab.__file__).parent),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{sys.platform} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if on_gpu else cpu_name(),
        "instruction_set": _instruction_set(),
        "threads": torch.get_num_threads(),
        "processes": world.size,
    }


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


def cpu_name() -> str:
    """The processor's own name, or its architecture where the system tells no more."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())


def _instruction_set() -> str:
    """What torch computes with on the CPU, and which units for bfloat16 its products may use."""
    units = {
        "bfloat16": torch.cpu._is_avx512_bf16_supported(),
        "AMX": torch.cpu._is_amx_tile_supported(),
    }
    there = [name for name, has in units.items() if has]
    return ", ".join([torch.backends.cpu.get_cpu_capability(), *there])
