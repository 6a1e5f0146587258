"""Which tensor of a model first becomes NaN or infinite.

`first_nonfinite` runs one forward and backward pass again with every tensor watched, in the order
of execution: for each module the inputs, its own parameters and buffers, then the outputs; after
the loss, in the backward pass, the gradient that reaches each module's output, the gradient it
sends to its input, and the gradients of its parameters. The first that is not finite is the answer,
and since a child finishes before its parent it names the innermost module.

An infinity that a model uses on purpose and passes between its modules, such as an additive
attention mask of -inf, is taken for the culprit: build such a mask inside the module that uses it.
Compiled modules run eagerly here, for a compiled graph has no places to watch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

#: what a message about a tensor that is not finite ends with
CURE = "lower the learning rate, keep that layer in high precision, or check the data"


@dataclass(frozen=True)
class Finding:
    """One non-finite tensor: whose it is, which one, and what is in it.

    >>> print(Finding("blocks.3.mlp.up", "gradient of the output", "Inf"))
    layer 'blocks.3.mlp.up', gradient of the output (Inf)
    """

    #: Dotted name of the module; "" is the model itself, "loss" the loss.
    layer: str
    #: "input", "output", "parameter weight", "gradient of weight", "gradient of the output", ...
    tensor: str
    #: "NaN" or "Inf".
    value: str

    def __str__(self) -> str:
        return f"layer {self.layer or '(model)'!r}, {self.tensor} ({self.value})"


def describe(tensor: Tensor) -> str | None:
    """ "NaN" or "Inf" if the tensor holds one, NaN taking precedence; None if it is finite."""
    values = tensor.detach()
    if not (values.is_floating_point() or values.is_complex()) or values.is_meta:
        return None
    if torch.isnan(values).any():
        return "NaN"
    return "Inf" if torch.isinf(values).any() else None


def first_nonfinite(model: nn.Module, loss: Callable[[], Tensor]) -> Finding | None:
    """Call `loss()`, which runs `model`, and its backward; return the first non-finite tensor.

    Gradients are added to those the parameters already hold. The caller arranges that `loss`
    repeats what went wrong: same batch, same rounding noise, same random state. Returns None when
    everything is finite this time.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> model[0].bias.data[1] = float("nan")
    >>> print(first_nonfinite(model, lambda: model(torch.ones(1, 2)).sum()))
    layer '0', parameter bias (NaN)
    """
    watch = _Watch()
    handles = list(watch.attach(model))
    try:
        with torch.compiler.set_stance("force_eager"):
            value = loss()
        watch.note("loss", "value", value)
        if watch.finding is None and value.requires_grad:
            value.backward()
    finally:
        for handle in handles:
            handle.remove()
    return watch.finding


@dataclass
class _Watch:
    """Keeps the first finding; later ones are its consequences."""

    finding: Finding | None = None
    seen: set[int] = field(default_factory=set)

    def note(self, layer: str, tensor: str, value: object) -> None:
        if self.finding is not None:
            return
        for part in _tensors(value):
            kind = describe(part)
            if kind is not None:
                self.finding = Finding(layer, tensor, kind)
                return

    def attach(self, model: nn.Module) -> Iterator[RemovableHandle]:
        for name, module in model.named_modules():
            yield module.register_forward_pre_hook(self._before(name), with_kwargs=True)
            yield module.register_forward_hook(self._after(name))
            for local, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad and id(parameter) not in self.seen:
                    self.seen.add(id(parameter))
                    yield _on_gradient(parameter, self._gradient(name, f"gradient of {local}"))

    def _before(self, name: str) -> Callable[[nn.Module, Any, Any], tuple[Any, Any]]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
            self.note(name, "input", (args, kwargs))
            for local, parameter in module.named_parameters(recurse=False):
                self.note(name, f"parameter {local}", parameter)
            for local, buffer in module.named_buffers(recurse=False):
                self.note(name, f"buffer {local}", buffer)
            # A view of its own, so that the gradient seen is the one of this module alone and not
            # the sum over everything that reads the same tensor.
            watched = tuple(self._watched_view(arg, name) for arg in args)
            return watched, kwargs

        return hook

    def _watched_view(self, arg: Any, name: str) -> Any:
        if not isinstance(arg, Tensor) or not arg.requires_grad:
            return arg
        view = arg.view_as(arg)
        _on_gradient(view, self._gradient(name, "gradient of the input"))
        return view

    def _after(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.note(name, "output", output)
            for part in _tensors(output):
                if part.requires_grad:
                    _on_gradient(part, self._gradient(name, "gradient of the output"))

        return hook

    def _gradient(self, name: str, tensor: str) -> Callable[[Tensor], None]:
        return lambda gradient: self.note(name, tensor, gradient)


def _on_gradient(tensor: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    handle: RemovableHandle = tensor.register_hook(hook)
    return handle


def _tensors(value: object) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
