"""Whether training goes on without `set_step`, so that every step rounds with the same noise.

Seen is a backward, then an update of the weight (torch counts what is written to it), then a
forward that will be differentiated; several microbatches, calls or recomputations with the same
weight are no second step. Left out: compiled layers and FSDP2, where the count does not tell.
"""

from __future__ import annotations

import warnings

from torch import Tensor

#: the same words for every layer, so that Python shows them once
UNSET = (
    "a model that rounds stochastically trains on after an update of its weights, and its step was "
    "never set, so every step has the same noise; call fp4lab.set_step(model, step) before each"
)


class StepWatch:
    """What a layer that rounds stochastically has until its step is set."""

    def __init__(self) -> None:
        self._trained: tuple[int, int] | None = None
        self._told = False

    def forget(self) -> None:
        """At weights that are loaded, which is no step of training."""
        self._trained = None

    def look(self, weight: Tensor, y: Tensor) -> None:
        """At a forward with this weight and result."""
        # what is no leaf (pruned, parametrized) is made anew in every forward
        if self._told or not y.requires_grad or not weight.is_leaf or weight.is_inference():
            return
        now = (id(weight), weight._version)
        if self._trained is not None and self._trained[0] == now[0] and self._trained[1] < now[1]:
            self._told = True
            warnings.warn(UNSET, stacklevel=2)
            return

        def trained(_: Tensor) -> None:
            self._trained = now

        y.register_hook(trained)
