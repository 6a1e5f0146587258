"""Whether every recipe fits the model, asked before a file is written or a run is started.

Training the baseline takes long; that the next recipe has a rule for eight blocks of a model with
two should not come out only then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from fp4lab.errors import InputError
from fp4lab.models import GPT
from fp4lab.nn.convert import convert
from fp4lab.recipes import Recipe
from fp4lab.train.config import FitConfig
from fp4lab.train.task import LanguageTask, to_device


def check_recipes(
    model: nn.Module,
    recipes: Mapping[str, Recipe],
    config: FitConfig,
    *,
    loss: Callable[[], Tensor],
) -> None:
    """Convert a model to every recipe, as it is at every step of a run; it is left so.

    The `loss` of the model is then computed and differentiated, for whether the tokens of a batch
    fill blocks shows only there.

    Raises InputError, with the recipe's name, for the first that does not fit.
    """
    for name, recipe in recipes.items():
        try:
            for phase in _phases(recipe, config):
                convert(model, phase, ragged=config.ragged)
                loss().backward()
        except InputError as error:
            raise InputError(f"recipe {name!r} cannot train this model: {error}") from None


def check_language(task: LanguageTask, recipes: Mapping[str, Recipe], config: FitConfig) -> GPT:
    """The same for a language model and its text; on the meta device, so at no cost at any size.

    Returns the model there. Raises InputError, too, for held-out windows that the text lacks.
    """
    task.validation()
    meta = torch.device("meta")
    with meta:
        model = task.build_model()
    batch = to_device(task.batch(0), meta)
    check_recipes(model, recipes, config, loss=lambda: task.loss(model, batch))
    return model


def _phases(recipe: Recipe, config: FitConfig) -> Iterator[Recipe]:
    """What is in force at the start, and after each switch within the run."""
    decay = config.schedule().decay_start
    steps = {0, *(decay if switch.at == "decay" else switch.at for switch in recipe.schedule)}
    for step in sorted(step for step in steps if step is not None and step < config.steps):
        yield recipe.at(step, decay)
