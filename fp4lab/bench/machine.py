"""On what was measured: processor, instructions, threads, versions, load, and the backend."""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import Any

import torch

import fp4lab
from fp4lab.bench.rows import Setting
from fp4lab.kernels import backends
from fp4lab.kernels.native import library
from fp4lab.train.environment import cpu_name


def describe(setting: Setting) -> dict[str, Any]:
    """What a reader needs to judge the numbers, as JSON.

    Raises:
        InputError: the backend that is forced cannot be had.
    """
    on_gpu = setting.device.type == "cuda"
    return {
        "cpu": cpu_name(),
        "gpu": torch.cuda.get_device_name(setting.device) if on_gpu else None,
        "isa": torch.backends.cpu.get_cpu_capability(),
        "avx512_bf16": bool(torch.cpu._is_avx512_bf16_supported()),
        "amx": bool(torch.cpu._is_amx_tile_supported()),
        "cores": os.cpu_count(),
        "threads": setting.threads,
        "load_average": load_average(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "fp4lab": fp4lab.__version__,
        "python": platform.python_version(),
        "system": f"{sys.platform} {platform.machine()}",
        **backend_in_force(setting.device),
        "date": time.strftime("%Y-%m-%d"),
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
