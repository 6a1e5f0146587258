"""Keeps a model at the recipe in force: conversion, rounding noise, switches during the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from fp4lab.nn import ConversionReport
    from fp4lab.recipes import Recipe


class Precision:
    """A converted model and its recipe's schedule; `recipe=None` leaves the model as it is.

    `decay_start` is the step that a switch "at the onset of decay" means. Which recipe is in force
    is a function of the step, so a resumed run needs no more than that.
    """

    def __init__(
        self, model: nn.Module, recipe: Recipe | None, *, seed: int, decay_start: int | None
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.decay_start = decay_start
        self.report: ConversionReport | None = None
        self._current: Recipe | None = None
        if recipe is not None:
            from fp4lab import nn as fp4nn

            self.report = fp4nn.convert(model, recipe, seed=seed)
            self._current = recipe.at(0, decay_start)

    def begin(self, step: int, microbatch: int = 0) -> None:
        """Bring the model to the recipe and the rounding noise of a microbatch (both from 0)."""
        if self.recipe is None:
            return
        from fp4lab import nn as fp4nn

        if self.recipe.schedule:
            due = self.recipe.at(step, self.decay_start)
            if due != self._current:
                fp4nn.set_recipe(self.model, due)
                self._current = due
        fp4nn.set_step(self.model, step, microbatch)
