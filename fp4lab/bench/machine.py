"""On what was measured: processor, instructions, threads, versions, load, and the backend."""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import Any

import torch

import fp4lab
from fp4lab import machine
from fp4lab.bench.rows import Setting


def describe(setting: Setting) -> dict[str, Any]:
    """What a reader needs to judge the numbers, as JSON.

    Raises:
        InputError: the backend that is forced cannot be had.
    """
    on_gpu = setting.device.type == "cuda"
    return {
        "cpu": machine.cpu_name(),
        "gpu": torch.cuda.get_device_name(setting.device) if on_gpu else None,
        **machine.instructions(),
        "cores": os.cpu_count(),
        "threads": setting.threads,
        "load_average": machine.load_average(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "fp4lab": fp4lab.__version__,
        "python": platform.python_version(),
        "system": f"{sys.platform} {platform.machine()}",
        **machine.backend_in_force(setting.device),
        "date": time.strftime("%Y-%m-%d"),
    }
