"""The processor and its limits, the GPUs, and the folders that things are kept in."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from fp4lab import machine
from fp4lab.doctor.findings import Line, State
from fp4lab.kernels import capability
from fp4lab.kernels.native import library

GIB = 1 << 30
#: bytes below which a folder that things are compiled into is called nearly full
LITTLE = GIB
INSTALL_CUDA = "install torch for CUDA: choose your system on pytorch.org, and run its pip command"


def processor() -> Iterator[Line]:
    """Its name, instructions, cores and memory, and how much of them this process may use."""
    has = machine.instructions()
    more = [name for name in ("AVX512-BF16", "AMX") if has[name.lower().replace("-", "_")]]
    yield Line("processor", "name", machine.cpu_name())
    yield Line("processor", "instructions", ", ".join([has["isa"], *more]))
    cores, usable, limit = os.cpu_count() or 1, machine.usable_cores(), machine.core_limit()
    allowed = usable if limit is None else min(usable, limit)
    text = f"{allowed:g} of {cores}" + (", limited by a control group" if allowed < usable else "")
    yield Line("processor", "cores", text)
    threads = torch.get_num_threads()
    if threads > max(1, allowed):
        fewer = max(1, int(allowed))
        cure = f"export OMP_NUM_THREADS={fewer}"
        yield Line("processor", "threads", f"{threads}, more than cores", State.NOTE, cure)
    else:
        yield Line("processor", "threads", str(threads))
    total, most = machine.memory(), machine.memory_limit()
    if total is not None:
        part = "" if most is None or most >= total else f", {most / GIB:.1f} by a control group"
        yield Line("processor", "memory", f"{total / GIB:.1f} GiB{part}")


def gpus() -> Iterator[Line]:
    """Every GPU that torch can use, or why it can use none."""
    if not torch.cuda.is_available():
        yield _no_gpu()
        return
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        chip = (about.major, about.minor)
        formats = ", ".join(capability.native_formats(chip)) or "no 4- or 8-bit formats"
        uses = "nvfp4 and mxfp4" if about.major in capability.BLOCK_SCALED else "none: emulated"
        yield Line(
            "gpu",
            f"cuda:{index}",
            f"{about.name}, {about.total_memory / GIB:.0f} GiB, sm_{about.major}{about.minor}; "
            f"multiplies {formats}; fp4lab uses {uses}",
        )


def _no_gpu() -> Line:
    driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    if not driver:
        return Line("gpu", "cuda", "no NVIDIA driver; the CPU computes, with the same bits")
    if torch.version.cuda is None:
        value = "an NVIDIA driver is here, and torch is built without CUDA"
        return Line("gpu", "cuda", value, State.NOTE, INSTALL_CUDA)
    value = f"an NVIDIA driver is here, and torch for CUDA {torch.version.cuda} finds no GPU"
    cure = "run nvidia-smi; it shows the CUDA version of the driver, which must be as new"
    return Line("gpu", "cuda", value, State.NOTE, cure)


def caches() -> Iterator[Line]:
    """The folders that compiled code and scratch files go to: writable, and with free space."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    triton = os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache"
    yield _folder("C operators", library.cache_folder(), "XDG_CACHE_HOME")
    yield _folder("Triton kernels", Path(triton), "TRITON_CACHE_DIR")
    yield _folder("scratch files", Path(tempfile.gettempdir()), "TMPDIR")


def _folder(name: str, folder: Path, variable: str) -> Line:
    """Whether files can be made there, and how much free space there is; nothing is left behind."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            free = shutil.disk_usage(there).free
    except OSError as error:
        value = f"{folder} cannot be written ({error.strerror})"
        cure = f"export {variable}=a folder that can be written"
        return Line("caches", name, value, State.NOTE, cure)
    value = f"{folder}, {free / GIB:.1f} GiB free"
    if free < LITTLE:
        cure = f"free some space, or export {variable}=a folder with more"
        return Line("caches", name, value, State.NOTE, cure)
    return Line("caches", name, value)
