"""What in a model is a linear layer that can be swapped, and what looks like one but is not.

A swap reaches a layer only if the model calls the layer. Modules that read the weights of a
`torch.nn.Linear` themselves, or hold matrices of their own, compute on as before; they are found
here so that a report can name them. What cannot be found: a forward of the user's that reads
`layer.weight` (`F.linear(x, self.head.weight)`), and products of plain tensors (attention).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from fp4lab.nn.linear import Linear
from fp4lab.recipes import Layer

#: names that wrappers put into a path: torch.compile, activation checkpointing
_WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})


_READ_THEIR_OWN_WEIGHTS = (
    (
        torch.nn.TransformerEncoderLayer,
        "in eval() without gradients its fast path reads linear1 and linear2 and never calls them; "
        "torch.backends.mha.set_fastpath_enabled(False) prevents that",
    ),
    (
        torch.nn.MultiheadAttention,
        "it multiplies by its own weights; write q, k, v and out as Linear layers",
    ),
    (torch.nn.modules.conv._ConvNd, "convolutions are not quantized"),
    (
        (torch.nn.RNNBase, torch.nn.RNNCellBase),
        "recurrent layers multiply by their own weights",
    ),
)


#: the modules that hold each parameter object, by its id
Owners: TypeAlias = dict[int, list[tuple[str, torch.nn.Module]]]


@dataclass(frozen=True)
class Found:
    """A module of the report: a linear layer when `layer` is given, else one that is not.

    `obstacle` says why it keeps its own arithmetic (None: it can be converted), `note` what a
    reader should know of a layer that can be.
    """

    name: str
    module: torch.nn.Module
    layer: Layer | None = None
    obstacle: str | None = None
    note: str = ""


def survey(model: torch.nn.Module) -> list[Found]:
    """All linear layers and other owners of matrices in a model, in its own order."""
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        model = model.module
    owners = _owners(model)
    attention = {
        id(module.out_proj)
        for module in model.modules()
        if isinstance(module, torch.nn.MultiheadAttention)
    }
    found = []
    keeps_names = _keeps_names(model)
    for path, module in model.named_modules():
        name = _clean(path)
        if isinstance(module, torch.nn.Linear):
            obstacle = None
            position = block_position(model, path)
            if isinstance(module, Linear):
                layer = Layer(module.layer_name if keeps_names else name, *position)
            else:
                layer = Layer(name, *position)
                obstacle = _obstacle(module, id(module) in attention)
            note = _shared_with(module, owners)
            found.append(Found(layer.name, module, layer, obstacle, note))
        elif (obstacle := _not_linear(module, owners)) is not None:
            found.append(Found(name, module, obstacle=obstacle))
    return found


def _keeps_names(model: torch.nn.Module) -> bool:
    """Whether the layers have names already: all are converted, and no two have one name.

    So a part of a converted model keeps the names of the whole. Otherwise, as after a conversion of
    parts, the paths in this model are the names.
    """
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    names = {module.layer_name for module in linear if isinstance(module, Linear)}
    # a layer that was converted by itself is called ""
    return len(names) == len(linear) and ("" not in names or linear == [model])


def block_position(model: torch.nn.Module, path: str) -> tuple[int | None, int | None]:
    """Index in the outermost `torch.nn.ModuleList` on the path, and that list's length."""
    module = model
    for part in path.split("."):
        if isinstance(module, torch.nn.ModuleList):
            return int(part), len(module)
        if part:
            module = module.get_submodule(part)
    return None, None


def _clean(path: str) -> str:
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def _obstacle(module: torch.nn.Linear, in_attention: bool) -> str | None:
    kind = type(module)
    own = (vars(module), module._parameters, module._buffers, module._modules)
    taken = ", ".join(name for name in Linear.ADDED if any(name in names for names in own))
    obstacles = (
        (
            in_attention,
            "MultiheadAttention hands on its weights and never calls the module",
        ),
        (
            is_parametrized(module),
            "its weight is computed by a parametrization; convert before, or remove it",
        ),
        (is_lazy(module.weight), "it has no weight yet; run one batch, then convert"),
        (module.weight.is_complex(), "its weight is complex"),
        (kind.forward is not torch.nn.Linear.forward, f"{kind.__name__} has a forward of its own"),
        (is_sharded(module), "it is sharded on its own; convert before fully_shard"),
        (bool(taken), f"it has attributes that a converted layer needs: {taken}; rename them"),
        (not _can_become_linear(kind), f"{kind.__name__} has __slots__ of its own"),
    )
    return next((reason for holds, reason in obstacles if holds), None)


def is_sharded(module: torch.nn.Module) -> bool:
    """Whether `fully_shard` was called on the module itself, which changes its class."""
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)


def _can_become_linear(kind: type[torch.nn.Linear]) -> bool:
    """Whether Python lets an instance change its class: another layout in memory it does not."""
    try:
        kind.__new__(kind).__class__ = Linear
    except TypeError:
        return False
    return True


def _not_linear(module: torch.nn.Module, owners: Owners) -> str | None:
    """Why the matrices that a module holds itself are not quantized; None where there are none."""
    for kinds, reason in _READ_THEIR_OWN_WEIGHTS:
        if isinstance(module, kinds):
            return reason
    matrices = [name for name, p in _parameters(module) if is_lazy(p) or p.dim() > 1]
    if not matrices:
        return None
    if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
        tied = [name for name, other in owners[id(module.weight)] if other is not module]
        return "a lookup is not a product" + (
            f"; it shares its weight with {', '.join(tied)}" if tied else ""
        )
    return f"a product with its own {', '.join(matrices)}, if there is one, is not quantized"


def _owners(model: torch.nn.Module) -> Owners:
    owners: Owners = {}
    for path, module in model.named_modules():
        for _, parameter in _parameters(module):
            owners.setdefault(id(parameter), []).append((_clean(path), module))
    return owners


def _parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return module.named_parameters(recurse=False)


def _shared_with(module: torch.nn.Linear, owners: Owners) -> str:
    others = [name for name, other in owners.get(id(module.weight), []) if other is not module]
    return f"shares its weight with {', '.join(others)}" if others else ""
