"""Giving a model's linear layers the numerics of a recipe, in place.

A `torch.nn.Linear` becomes a `fp4lab.nn.Linear` by a change of its class, as lazy modules and FSDP2
do it in torch: the module stays the same object, and so do its parameters, hooks and their handles,
training mode, device, state-dict keys, and every reference to it: optimizers, tied weights, lists.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.utils.parametrize import is_parametrized

from fp4lab.errors import InputError, expect, whole
from fp4lab.functional import check_ragged
from fp4lab.nn.gemms import hadamard_padding
from fp4lab.nn.linear import Linear
from fp4lab.nn.report import Action, ConversionReport, Row
from fp4lab.nn.survey import Found, is_sharded, survey
from fp4lab.recipes import LinearRecipe, Recipe, Resolved, find
from fp4lab.recipes.view import short


def convert(
    model: torch.nn.Module, recipe: Recipe | str, *, seed: int = 0, ragged: str = "error"
) -> ConversionReport:
    """Makes every linear layer of a model compute by a recipe.

    Converted is every `torch.nn.Linear`, and every subclass that keeps its forward (of which only
    the data stays). A layer's block position is its index in the outermost ModuleList around it. On
    a model that is converted already this changes recipe and seed; layers that the new recipe
    leaves alone then compute as they are. Works on the meta device. The recipe's schedule is not
    looked at: the training loop passes `recipe.at(step)` to `set_recipe`.

    Args:
        model: any module, changed in place; a compiled one recompiles.
        recipe: from `fp4lab.recipes`, or its name or the path of its file.
        seed: of stochastic rounding; each layer's noise depends on it and on the layer's name.
        ragged: "error", or "pad" to complete blocks with zeros where a dimension does not fit: the
            features of every layer, and in the backward pass the tokens of a batch, should be
            multiples of 16 under nvfp4 and of 32 under mxfp4.

    Returns:
        What each layer got and why, and what was not reached. Nothing is changed on an error.

    Raises:
        InputError: no linear layer that can be converted; an unknown name, or a recipe that does
            not fit the model (a rule that matches nothing, a layer that no rule matches); a layer
            whose features are not a multiple of its blocks.

    >>> mlp = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    >>> convert(mlp, "nvfp4").names("converted")
    ('0', '2')
    """
    expect("model", model, torch.nn.Module, "give the model itself")
    recipe = find(recipe)
    whole("seed", seed, 0, 2**63 - 1)
    return _apply(model, recipe, lambda _: (seed, ragged))


def _apply(
    model: torch.nn.Module, recipe: Recipe, how: Callable[[torch.nn.Module], tuple[int, str]]
) -> ConversionReport:
    """`convert` with the seed and the ragged policy that `how` gives for a layer."""
    found = survey(model)
    reachable = [f for f in found if f.layer is not None and f.obstacle is None]
    if not reachable:
        reasons = sorted({f.obstacle for f in found if f.layer is not None and f.obstacle})
        raise InputError(
            f"model of class {type(model).__name__} has no torch.nn.Linear that can be converted"
            + "".join(f"; {reason}" for reason in reasons)
        )
    resolved = recipe.assign(f.layer for f in reachable if f.layer is not None)
    for f, r in zip(reachable, resolved, strict=True):
        _check_features(f, r.linear or LinearRecipe(), how(f.module)[1])
    gets = dict(zip((id(f.module) for f in reachable), resolved, strict=True))
    rows = []
    for f in found:
        if f.obstacle is not None:
            rows.append(_untouched(f))
        else:
            rows.append(_converted(f, gets[id(f.module)], recipe, *how(f.module)))
    return ConversionReport(recipe.name, tuple(rows))


def set_recipe(model: torch.nn.Module, recipe: Recipe | str) -> ConversionReport:
    """Changes the recipe of a converted model and nothing else; for precision schedules.

    Raises:
        InputError: a model without converted layers, or as `convert`.

    >>> mlp = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 16))
    >>> report = convert(mlp, "nvfp4")
    >>> set_recipe(mlp, "bf16").names("updated")
    ('0', '1')
    """
    first = converted_layers(model)[0]
    recipe = find(recipe)

    def own(module: torch.nn.Module) -> tuple[int, str]:
        layer = module if isinstance(module, Linear) else first
        return layer.seed, layer.ragged

    return _apply(model, recipe, own)


def set_step(model: torch.nn.Module, step: int, microbatch: int = 0) -> int:
    """Moves the rounding noise of all converted layers on, and returns how many there are.

    Call it before every forward pass, and not between a forward and its backward where activations
    are recomputed, which would round anew: the same step and microbatch give the same noise, in
    recomputed activations and after a restart too, and others give independent noise. Nothing is
    recompiled, for the noise is a buffer.

    Where several processes train on parts of a batch, give each a microbatch of its own. FSDP2
    leaves buffers alone; DistributedDataParallel hands those of rank 0 to all, and so its noise,
    unless it is given `forward_sync_buffers=False` (in older torch `broadcast_buffers=False`).

    Raises:
        InputError: a step or microbatch that is not an integer in [0, 2^32), or a model without
            converted layers.

    >>> mlp = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 16))
    >>> report = convert(mlp, "nvfp4")
    >>> set_step(mlp, 7)
    2
    """
    layers = converted_layers(model)
    for layer in layers:
        layer.set_step(step, microbatch)
    return len(layers)


def converted_layers(model: torch.nn.Module) -> list[Linear]:
    """The converted layers of a model, in its order; InputError where there are none."""
    expect("model", model, torch.nn.Module, "give the model itself")
    layers = [module for module in model.modules() if isinstance(module, Linear)]
    if not layers:
        raise InputError("model has no converted layer; call fp4lab.convert(model, recipe) first")
    return layers


def unconvert(model: torch.nn.Module) -> int:
    """Turns converted layers back into `torch.nn.Linear`, and returns how many there were.

    Parameters, hooks and training mode stay. A converted subclass of `torch.nn.Linear` comes back
    as `torch.nn.Linear` itself; subclasses of `fp4lab.nn.Linear` are left as they are.

    Raises:
        InputError: a layer that has been parametrized or sharded on its own since; nothing is
            changed then.

    >>> mlp = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 16))
    >>> report = convert(mlp, "nvfp4")
    >>> unconvert(mlp), type(mlp[0]) is torch.nn.Linear
    (2, True)
    """
    expect("model", model, torch.nn.Module, "give the model itself")
    found = [module for module in model.modules() if isinstance(module, Linear)]
    for layer in found:
        if is_parametrized(layer) or is_sharded(layer):
            cure = "remove its parametrization first"
            if is_sharded(layer):
                cure = "unconvert before fully_shard, or use `with fp4lab.disabled(model):`"
            raise InputError(
                f"layer {layer.layer_name!r} has become a {type(layer).__name__} since it was "
                f"converted; {cure}"
            )
    layers = [layer for layer in found if type(layer) is Linear]
    for layer in layers:
        layer._unconfigure()
        layer.__class__ = torch.nn.Linear  # type: ignore[assignment]
    return len(layers)


def _check_features(found: Found, linear: LinearRecipe, ragged: str) -> None:
    """InputError unless blocks fit the weight; tokens (0 here) are only known in a forward."""
    module = found.module
    assert isinstance(module, torch.nn.Linear)
    K, N = module.in_features, module.out_features
    shapes = {"x": (0, K), "w": (N, K), "dy": (0, N)}
    for place, operand in linear.operands().items():
        if operand.format is not None:
            rows, columns = shapes[place.tensor]
            across, along = (columns, rows) if place.transposed else (rows, columns)
            shape = (across, along + hadamard_padding(along, operand.hadamard, ragged))
            what = f"layer {found.name!r}"
            check_ragged(shape, operand.format, operand.hadamard, ragged, what, place.sides)


def _untouched(found: Found) -> Row:
    assert found.obstacle is not None
    layer = found.layer
    return Row(
        name=found.name,
        kind=type(found.module).__name__,
        action="not quantized" if layer is None else "unreachable",
        reason=found.obstacle,
        block=None if layer is None else layer.block,
    )


def _converted(found: Found, gets: Resolved, recipe: Recipe, seed: int, ragged: str) -> Row:
    module, layer, linear = found.module, found.layer, gets.linear
    assert isinstance(module, torch.nn.Linear)
    assert layer is not None
    kind = type(module).__name__
    action: Action = "updated" if isinstance(module, Linear) else "converted"
    if linear is None:
        action, numerics = "left alone", "its own"
    else:
        numerics = recipe.name if gets.rule is None else short(linear)
    if linear is not None or isinstance(module, Linear):
        _adopt(module, linear or LinearRecipe(), layer.name, seed, ragged)
    return Row(
        name=layer.name,
        kind=kind,
        action=action,
        numerics=numerics,
        reason="; ".join(part for part in (gets.reason, found.note) if part),
        linear=linear,
        block=layer.block,
    )


def _adopt(
    module: torch.nn.Linear, linear: LinearRecipe, name: str, seed: int, ragged: str
) -> None:
    if not isinstance(module, Linear):
        module.__class__ = Linear
    assert isinstance(module, Linear)
    module._configure(linear, name, seed, ragged)
