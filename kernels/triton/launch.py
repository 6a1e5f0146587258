"""How kernels are launched, and where they can run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

#: whether kernels are interpreted: Triton decides it when a kernel's module is imported, as here
INTERPRETED = bool(triton.knobs.runtime.interpret)


def runs_on(device: torch.device) -> bool:
    """Whether kernels run there: on CUDA, and on the CPU where Triton's interpreter was chosen."""
    return device.type == "cuda" or (device.type == "cpu" and INTERPRETED)


def plain(x: Tensor) -> Tensor:
    """The tensor without a graph or a pending negation, as a kernel can read it."""
    return x.detach().resolve_neg()


def readable(*tensors: Tensor | None) -> bool:
    """Whether all of them are ordinary tensors where kernels run, and not empty."""
    return all(
        type(x) in (Tensor, torch.nn.Parameter) and runs_on(x.device) and x.numel() > 0
        for x in tensors
        if x is not None
    )


def as_integers(x: Tensor) -> Tensor:
    """16-bit floats as the int16 of their bits; the kernels' arithmetic on them is integer."""
    return x.view(torch.int16) if x.element_size() == 2 else x


@contextlib.contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """The device made the current one; NumPy, which interprets, silent about NaN and overflow."""
    here = torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
    quiet = np.errstate(all="ignore") if INTERPRETED else contextlib.nullcontext()
    with here, quiet:
        yield


def launch(
    kernel: Any,
    programs: int,
    arguments: Sequence[Any],
    *,
    warps: int = 4,
    device: torch.device | None = None,
    **constants: Any,
) -> None:
    """Run `programs` programs on the device, that of the first argument where none is given.

    A multiplication and an addition are never contracted to one rounding: the reference has two.
    """
    with on_device(device or arguments[0].device):
        kernel[(programs,)](*arguments, num_warps=warps, enable_fp_fusion=False, **constants)
