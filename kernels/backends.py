"""Who computes an operator: the C library, Triton, torch in chunks, or the plain reference.

On a CPU the C operators are taken where the library can be had, and otherwise torch in chunks that
stay in the cache; on a GPU Triton where it is installed, and otherwise the reference. All give the
same bits (sums of products apart, which differ by rounding). `FP4LAB_BACKEND` or
`with backend("reference"):` forces a choice; one that cannot be had is an error that says why.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any, TypeVar

import torch

from fp4lab.errors import InputError, unknown
from fp4lab.kernels.native.library import function, instruction_sets, load

BACKENDS = ("native", "native-v2", "native-v3", "native-v4", "triton", "torch", "reference")
Function = TypeVar("Function", bound=Callable[..., Any])
#: what is forced, the newest last, by its block: those of several threads end in any order
_forced: dict[object, str] = {}
#: read once, for it is asked for at every call of an operator
_ASKED = os.environ.get("FP4LAB_BACKEND", "")
#: a denormal; flushed, its product is 0 (Python's own numbers are computed by the same unit)
_TINY = 5e-324


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Force who computes inside a `with` block, for all threads of the process.

    Args:
        name: "native" (C; "native-v2" to "native-v4" for one instruction set), "triton" (on a
            GPU), "torch" (in chunks) or "reference" (the definition). All give the same bits,
            sums of products apart.

    Raises:
        InputError: an unknown name, here; one that cannot be had, with the reason, where an
            operator is called.

    >>> import fp4lab
    >>> x = torch.randn(64, 64)
    >>> with backend("reference"):
    ...     y = fp4lab.fake_quantize(x, fp4lab.formats.NVFP4)
    >>> torch.equal(y, fp4lab.fake_quantize(x, fp4lab.formats.NVFP4))
    True
    """
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    block = object()
    _forced[block] = name
    try:
        yield
    finally:
        del _forced[block]


def forced() -> str:
    """The name that is forced, or an empty one."""
    if names := list(_forced.values()):
        return names[-1]
    if _ASKED and _ASKED not in BACKENDS:
        raise unknown("FP4LAB_BACKEND", _ASKED, BACKENDS)
    return _ASKED


def chosen(device: torch.device) -> str:
    """Who computes on this device: "native", "triton", "torch" or "reference".

    Raises:
        InputError: the forced choice cannot be had.
    """
    name = forced()
    if name in ("torch", "reference"):
        return name
    if name.startswith("native"):
        _check_native(name, device)
        return "native"
    if name == "triton":
        _check_triton(device)
        return name
    if device.type == "cpu":
        return "native" if instruction_sets() else "torch"
    return "triton" if device.type == "cuda" and has_triton() else "reference"


def with_denormals(function: Function) -> Function:
    """A function in which torch does not flush denormals on a CPU, whatever the caller has set.

    The formats need them: block scales and products of scales may be subnormal. The C operators
    see to it themselves, for every thread. Torch's worker threads flush for good where they began
    while the caller did; then one thread computes. What `torch.set_flush_denormal(True)` changes
    are the sums of products, which torch computes.
    """

    @wraps(function)
    def inner(*arguments: Any) -> Any:
        flushes, threads = _TINY * 1.0 == 0, torch.get_num_threads()
        if threads == 1 and not flushes:
            return function(*arguments)
        if flushes:
            torch.set_flush_denormal(False)
        alone = threads > 1 and _workers_flush(threads)
        if alone:
            torch.set_num_threads(1)
        try:
            return function(*arguments)
        finally:
            if alone:
                torch.set_num_threads(threads)
            if flushes:
                torch.set_flush_denormal(True)

    return inner  # type: ignore[return-value]


class _Workers(threading.local):
    """The worker threads of one thread of Python, as they were found."""

    count = 1
    flush = False


_workers = _Workers()


def _workers_flush(threads: int) -> bool:
    """Whether torch's worker threads flush denormals; found anew when their number changes."""
    if threads != _workers.count:
        # enough that every thread gets some
        tiny = torch.full((threads << 16,), 2.0**-140, dtype=torch.float32, device="cpu")
        _workers.flush = bool((tiny * 0.5 == 0).any())
        _workers.count = threads
    return _workers.flush


def native(name: str) -> Any:
    """The C function of an operator, of the instruction set in force."""
    return function(name, instruction_set())


def instruction_set() -> str:
    """The one that is forced, or an empty name."""
    return forced().partition("-")[2]


def _check_native(name: str, device: torch.device) -> None:
    if device.type != "cpu":
        raise InputError(f"backend={name!r} computes on CPUs, and the tensor is on {device}")
    there, wanted = instruction_sets(), name.partition("-")[2]
    if not there or (wanted and wanted not in there):
        reason = load()[1] or f"this processor and compiler have {', '.join(there)}"
        cure = "; use 'native'" if there else ", or use 'torch'"
        raise InputError(f"backend={name!r} cannot be had: {reason}{cure}")


def _check_triton(device: torch.device) -> None:
    if not has_triton():
        raise InputError("backend='triton' cannot be had: triton is not installed; use 'reference'")
    if not _runs_triton(device):
        raise InputError(
            f"backend='triton' computes on GPUs, and the tensor is on {device}; use 'native', or "
            "set TRITON_INTERPRET=1 before triton is imported to run its interpreter"
        )


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def _runs_triton(device: torch.device) -> bool:
    # imported here, for it imports Triton
    from fp4lab.kernels.triton.launch import runs_on

    return runs_on(device)
