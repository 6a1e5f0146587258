"""A block in which a converted model computes as before its conversion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fp4lab.nn.convert import converted_layers
from fp4lab.nn.linear import Linear


@contextmanager
def disabled(model: torch.nn.Module) -> Iterator[None]:
    """Lets the converted layers of a model compute as `torch.nn.Linear` inside a `with` block.

    Inside, the model gives the bits of the unconverted one, autocast and gradients included; after
    it, also after an exception, layers follow their recipes again. Blocks may be nested, `model`
    may be a part of a model, and other threads see the block too. A compiled model is compiled for
    both, once.

    A backward is that of its forward, wherever it runs: of a forward inside the block, torch's own,
    and of one outside, the recipe's. With activation checkpointing the forward is computed again in
    the backward: keep both inside, or both outside.

    Args:
        model: layers that are converted when the block begins; those that are converted inside of
            it follow their recipe. A copy made inside is not disabled.

    Raises:
        InputError: no module, or a model without converted layers.

    >>> import fp4lab
    >>> layer = torch.nn.Linear(64, 64)
    >>> x = torch.randn(16, 64)
    >>> before = layer(x)
    >>> _ = fp4lab.convert(layer, "nvfp4")
    >>> with disabled(layer):
    ...     torch.equal(layer(x), before)
    True
    >>> torch.equal(layer(x), before)
    False
    """
    layers = converted_layers(model)
    for layer in layers:
        layer._disabled += 1
    try:
        yield
    finally:
        for layer in layers:
            # an `unconvert` inside has ended the block for a layer
            if isinstance(layer, Linear) and layer._disabled:
                layer._disabled -= 1
