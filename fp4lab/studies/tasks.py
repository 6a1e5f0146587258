"""A user's own module and data as a task that the training loop can run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from fp4lab.errors import InputError
from fp4lab.train.task import Task

#: batch of an index, as a function or as a sequence that is gone through again and again
Batches: TypeAlias = Callable[[int], Any] | Sequence[Any]
Loss: TypeAlias = Callable[[nn.Module, Any], Tensor]

HELD_OUT_BATCHES = 8


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross entropy in nats of `model(inputs)`, logits in the last axis, in float32.

    `batch` is (inputs, targets), the targets class indices of the logits' other axes.
    """
    inputs, targets = batch
    logits = model(inputs)
    return nn.functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


@dataclass(frozen=True)
class UserTask:
    """The functions given to `compare`, bound to the training loop's protocol."""

    build: Callable[[], nn.Module]
    batches: Batches
    held_out: Batches
    held_out_indices: range
    loss_function: Loss

    def build_model(self) -> nn.Module:
        """A new model; the caller has set torch's seed."""
        return self.build()

    def batch(self, index: int) -> Any:
        """Training batch of an index."""
        return _pick(self.batches, index)

    def validation(self) -> list[Any]:
        """The held-out batches."""
        return [_pick(self.held_out, index) for index in self.held_out_indices]

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch."""
        return self.loss_function(model, batch)


def user_task(
    build_model: Callable[[], nn.Module],
    batches: Batches,
    validation: Batches | None,
    *,
    loss: Loss,
    training_batches: int,
) -> UserTask:
    """The task; without `validation` some of `batches` are held out (see `compare`).

    Raises InputError for batches that are no function and no sequence, or too few to hold out any.
    """
    for name, value in (("batches", batches), ("validation", validation)):
        if value is not None and not callable(value) and not isinstance(value, Sequence):
            raise InputError(
                f"{name}={type(value).__name__} is neither a function of the index nor a sequence;"
                f" give list({name}) or a function"
            )
        if isinstance(value, Sequence) and len(value) == 0:
            raise InputError(f"{name} is empty; give at least one batch")
    if validation is not None:
        count = len(validation) if isinstance(validation, Sequence) else HELD_OUT_BATCHES
        return UserTask(build_model, batches, validation, range(count), loss)
    if isinstance(batches, Sequence):
        kept = len(batches) - max(1, len(batches) // 10)
        if kept == 0:
            raise InputError("batches has one entry and validation none; give validation=")
        rest = batches[kept:]
        return UserTask(build_model, batches[:kept], rest, range(len(rest)), loss)
    beyond = range(training_batches, training_batches + HELD_OUT_BATCHES)
    return UserTask(build_model, batches, batches, beyond, loss)


def _pick(batches: Batches, index: int) -> Any:
    return batches(index) if callable(batches) else batches[index % len(batches)]


def fingerprint(task: Task) -> tuple[nn.Module, dict[str, str]]:
    """The model of seed 0; digests of its weights and of the first batches, to know them again."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = task.build_model()
        held_out = next(iter(task.validation()), None)
        digests = {
            "initial weights": _digest(model.state_dict()),
            "first batch": _digest(task.batch(0)),
            "first validation batch": _digest(held_out),
        }
    return model, digests


def _digest(value: Any) -> str:
    sha = hashlib.sha256()
    _update(sha, value)
    return sha.hexdigest()[:16]


def _update(sha: hashlib._Hash, value: Any) -> None:
    if isinstance(value, Tensor):
        tensor = value.detach().cpu().contiguous()
        sha.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key, entry in value.items():
            sha.update(str(key).encode())
            _update(sha, entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            _update(sha, entry)
    else:
        sha.update(repr(value).encode())
