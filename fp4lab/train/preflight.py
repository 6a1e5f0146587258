"""Whether every recipe fits the model, asked before a file is written or a run is started.

Training the baseline takes long; that the next recipe has a rule for eight blocks of a model with
two should not come out only then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn

from fp4lab.errors import InputError
from fp4lab.nn.convert import convert
from fp4lab.recipes import Recipe
from fp4lab.train.config import FitConfig


def check_recipes(
    model: nn.Module,
    recipes: Mapping[str, Recipe],
    config: FitConfig,
    *,
    loss: Callable[[nn.Module], Tensor] | None = None,
) -> None:
    """Convert a model to every recipe, as it is at every step of a run; the model is left so.

    `loss` is then computed and differentiated, for whether the tokens of a batch fill blocks shows
    only there: with a model and a batch on the meta device, it takes no time.

    Raises InputError, with the recipe's name, for the first that does not fit.
    """
    for name, recipe in recipes.items():
        try:
            for phase in _phases(recipe, config):
                convert(model, phase, ragged=config.ragged)
                if loss is not None:
                    loss(model).backward()
        except InputError as error:
            raise InputError(f"recipe {name!r} cannot train this model: {error}") from None


def _phases(recipe: Recipe, config: FitConfig) -> Iterator[Recipe]:
    """What is in force at the start, and after each switch within the run."""
    decay = config.schedule().decay_start
    yield recipe.at(0, decay)
    for switch in recipe.schedule:
        step = decay if switch.at == "decay" else switch.at
        if step is not None and 0 < step < config.steps:
            yield recipe.at(step, decay)
