"""Between live objects and the flat named tensors of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from fp4lab.errors import InputError

Tensors = dict[str, Tensor]


def model_tensors(model: nn.Module) -> tuple[Tensors, dict[str, str]]:
    """The state dict with each memory once, and the other names of tied tensors.

    >>> model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    >>> model["b"].weight = model["a"].weight
    >>> tensors, tied = model_tensors(model)
    >>> list(tensors), tied
    (['a.weight'], {'b.weight': 'a.weight'})
    """
    first: dict[tuple[object, ...], str] = {}
    tensors: Tensors = {}
    tied: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise InputError(f"model state {name!r} is no tensor; checkpoints hold tensors only")
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape)
        if tensor.numel() > 0 and (original := first.setdefault(place, name)) != name:
            tied[name] = original
        else:
            tensors[name] = tensor.detach().contiguous()
    return tensors, tied


def restore_model(
    model: nn.Module, tensors: Tensors, tied: dict[str, str], *, source: Path
) -> None:
    """Copy a checkpoint's tensors into a model of the same shape; InputError for any other."""
    state = tensors | {
        name: tensors[original] for name, original in tied.items() if original in tensors
    }
    own = model.state_dict()
    for name in sorted(own.keys() | state.keys()):
        saved = tuple(state[name].shape) if name in state else "absent"
        wanted = tuple(own[name].shape) if name in own else "absent"
        if saved != wanted:
            raise InputError(
                f"checkpoint={source} does not fit the model: {name!r} is {saved} in the "
                f"checkpoint, {wanted} in the model; give the config it was made with"
            )
    model.load_state_dict(state)


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> Tensors:
    """The optimizer's state as "<parameter>/<key>"; groups and rates are not state but config."""
    tensors: Tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                raise InputError(f"optimizer state {key!r} is no tensor; it cannot be saved")
            tensors[f"{name}/{key}"] = value.detach().contiguous()
    return tensors


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Tensors) -> None:
    """Put a checkpoint's optimizer state back, on each parameter's device.

    Raises InputError for the state of a parameter that the model does not have.
    """
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        if name not in parameters:
            raise InputError(
                f"optimizer state {key!r} is of no parameter of the model; use another checkpoint"
            )
        optimizer.state[parameters[name]][entry] = value.to(parameters[name].device)
