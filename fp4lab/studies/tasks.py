"""A user's own module and data as a task that the training loop can run."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from fp4lab.errors import InputError
from fp4lab.recipes import Recipe
from fp4lab.train.config import FitConfig
from fp4lab.train.forward import Forward, reproducible
from fp4lab.train.preflight import check_recipes
from fp4lab.train.task import Task, to_device
from fp4lab.train.world import choose_device, join

#: batch of an index, as a function or as a sequence that is gone through again and again
Batches: TypeAlias = Callable[[int], Any] | Sequence[Any]
Loss: TypeAlias = Callable[[nn.Module, Any], Tensor]

HELD_OUT_BATCHES = 8
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross entropy in nats of `model(inputs)`, logits in the last axis, in float32.

    `batch` is (inputs, targets), the targets class indices (integers) of the logits' other axes.

    Raises:
        InputError: a batch that is no pair, or targets that are no class indices.

    >>> cross_entropy(nn.Identity(), (torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)))
    tensor(0.6931)
    """
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InputError(
            f"a batch is a {type(batch).__name__}, not (inputs, targets) as cross_entropy takes "
            "them; give loss=, a function of the model and a batch"
        )
    inputs, targets = batch
    if not isinstance(targets, Tensor) or targets.dtype not in _INTEGERS:
        what = targets.dtype if isinstance(targets, Tensor) else type(targets).__name__
        raise InputError(
            f"targets of a batch are {what}, and cross_entropy takes class indices, integers in a "
            "tensor; give those, or loss=, a function of the model and a batch"
        )
    logits = model(inputs)
    return nn.functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten().long())


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

    Raises InputError for a model instead of a function, and for batches that are no function and no
    sequence, or too few to hold out any.
    """
    if isinstance(build_model, nn.Module) or not callable(build_model):
        raise InputError(
            f"build_model={type(build_model).__name__} is no function that gives a new module; "
            "give lambda: Model(...)"
        )
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


def first_look(
    task: Task, recipes: Mapping[str, Recipe], config: FitConfig
) -> tuple[nn.Module, dict[str, str]]:
    """Whether every recipe can train the task; its model, and what tells it from other tasks.

    Digests of the initial weights and of the first batches, and the losses of these without a
    recipe, which change with the model's code and with the loss function.

    Raises InputError for batches that differ from call to call, a loss that is no number, and a
    recipe that does not fit the model or the first batch.
    """
    device = choose_device(config.device)
    # Bits of a loss depend on the threads, which a rerun may be given other numbers of.
    plain = dataclasses.replace(config, seed=0, threads=1, compile=False)
    with join(device) as world, reproducible(plain, device):
        forward = Forward.build(task, None, plain, world)
        found = {"initial weights": _digest(forward.model.state_dict())}
        first = _same_twice("batch", lambda: task.batch(0))
        held_out = _same_twice("validation batch", lambda: next(iter(task.validation())))
        for name, batch, training in (
            ("first batch", first, True),
            ("first validation batch", held_out, False),
        ):
            found[name] = _digest(batch)
            found[f"loss of the {name}"] = _loss(forward, batch, training=training).hex()
        forward.model.train()
        on_device = to_device(first, device)
        check_recipes(forward.model, recipes, config, loss=lambda: forward.loss(0, 0, on_device))
    model = forward.model.cpu()
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the runs, which are other processes, need the memory
    return model, found


def _same_twice(name: str, give: Callable[[], Any]) -> Any:
    value = give()
    if _digest(give()) != _digest(value):
        raise InputError(
            f"the first {name} differs from call to call, so no two recipes would see the same; "
            "seed what is random in it with the index, as by torch.Generator().manual_seed(index)"
        )
    return value


def _loss(forward: Forward, batch: Any, *, training: bool) -> float:
    forward.model.train(training)
    with torch.set_grad_enabled(training):
        loss = forward.loss(0, 0, to_device(batch, forward.world.device))
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError(f"loss(model, batch)={what} is not one number in a tensor; give the mean")
    return float(loss.detach())


def _digest(value: Any) -> str:
    sha = hashlib.sha256()
    _update(sha, value)
    return sha.hexdigest()[:16]


def _update(sha: hashlib._Hash, value: Any) -> None:
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor):
        tensor = value.detach().cpu().contiguous()
        sha.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            sha.update(str(key).encode())
            _update(sha, entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            _update(sha, entry)
    else:
        # Without the address of an object, which is another in each process.
        sha.update(re.sub(r" at 0x[0-9a-f]+", "", repr(value)).encode())
