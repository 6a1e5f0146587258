"""On what a run was made: versions, machine and git revision, kept in its folder."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fp4lab
from fp4lab.machine import cpu_name, git_revision, instructions
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


def _instruction_set() -> str:
    """What torch computes with on the CPU, and which units for bfloat16 its products may use."""
    found = instructions()
    units = {"bfloat16": found["avx512_bf16"], "AMX": found["amx"]}
    return ", ".join([found["isa"], *(name for name, there in units.items() if there)])
