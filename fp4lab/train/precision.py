"""Keeps a model at the recipe in force: conversion, rounding noise, switches during the run."""

from __future__ import annotations

from torch import nn

from fp4lab.nn import ConversionReport, Linear, convert, set_step
from fp4lab.recipes import Recipe
from fp4lab.train.config import FitConfig


class Precision:
    """A converted model and its recipe's schedule; `recipe=None` leaves the model as it is.

    `decay_start` is the step that a switch "at the onset of decay" means. Which recipe is in force
    is a function of the step, so a resumed run needs no more than that.
    """

    def __init__(self, model: nn.Module, recipe: Recipe | None, config: FitConfig) -> None:
        self.model = model
        self.recipe = recipe
        self.config = config
        self.decay_start = config.schedule().decay_start
        self.report: ConversionReport | None = None
        self._current: Recipe | None = None
        self._rounds = False
        if recipe is not None:
            self._convert(recipe.at(0, self.decay_start))

    def begin(self, step: int, microbatch: int = 0) -> None:
        """Bring the model to the recipe and the rounding noise of a microbatch (both from 0)."""
        if self.recipe is None:
            return
        if self.recipe.schedule:
            due = self.recipe.at(step, self.decay_start)
            if due != self._current:
                self._convert(due)
        if self._rounds:
            set_step(self.model, step, microbatch)

    def _convert(self, recipe: Recipe) -> None:
        self.report = convert(self.model, recipe, seed=self.config.seed, ragged=self.config.ragged)
        self._current = recipe
        # a recipe may leave every layer alone
        self._rounds = any(isinstance(module, Linear) for module in self.model.modules())
