"""The processes that train together: one alone, or those that torchrun started.

Data parallel with explicit sums, by gloo on the CPU and NCCL on GPUs. Each rank computes its share
of a step's microbatches and the gradients are added up once a step, so that

    one process, N microbatches  =  N processes, one microbatch each

up to the order of float32 additions, and the same run may go on with another number of processes.
DistributedDataParallel was left out: it wraps the model (another name for every parameter), scales
by the number of ranks instead of microbatches, and gains only the overlap of communication with the
backward pass. Models that do not fit one device need sharding, which belongs to fp4lab.parallel.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fp4lab.errors import InputError


@dataclass(frozen=True)
class World:
    """This process among those that train together."""

    rank: int
    size: int
    device: torch.device

    def share(self, microbatches: int) -> range:
        """The microbatches of a step that are this rank's; they must divide evenly."""
        if microbatches % self.size:
            raise InputError(
                f"microbatches={microbatches} cannot be shared by {self.size} processes; make it a "
                f"multiple of their number, as by --microbatches {self.size}"
            )
        each = microbatches // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace every gradient by the sum over ranks; a rank without one adds zero."""
        if self.size == 1:
            return
        by_dtype = groupby(sorted(parameters, key=_dtype_name), key=_dtype_name)
        for _, group in by_dtype:
            same = list(group)
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in same]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            dist.all_reduce(flat)
            pieces = torch.split(flat, [parameter.numel() for parameter in same])
            for parameter, piece in zip(same, pieces, strict=True):
                parameter.grad = piece.view_as(parameter)

    def agree(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        return self.gather(value)[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank; for small objects and rare moments."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def choose_device(name: str) -> torch.device:
    """The device of a config: "cpu", "cuda" or "auto"; with torchrun each rank has its own GPU."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError(f"device={name!r} is not available here; use 'cpu' or 'auto'")
    index = int(os.environ.get("LOCAL_RANK", "0"))
    if index >= torch.cuda.device_count():
        raise InputError(
            f"device={name!r} has {torch.cuda.device_count()} GPUs, but local rank {index} needs "
            "one of its own; start fewer processes"
        )
    return torch.device("cuda", index)


@contextmanager
def join(device: torch.device) -> Iterator[World]:
    """Join the processes of torchrun, if it started this one; leave them at the end.

    A process group that exists already is used and left alone.
    """
    under_torchrun = int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ
    started = under_torchrun and not dist.is_initialized()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if started:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        if dist.is_initialized():
            yield World(dist.get_rank(), dist.get_world_size(), device)
        else:
            yield World(0, 1, device)
    finally:
        if started:
            dist.destroy_process_group()


def _dtype_name(parameter: nn.Parameter) -> str:
    return str(parameter.dtype)
