"""From a RunConfig to a trained model."""

from __future__ import annotations

from pathlib import Path

from fp4lab.recipes import find
from fp4lab.train.config import RunConfig
from fp4lab.train.folder import FitResult
from fp4lab.train.loop import OnEvent, fit
from fp4lab.train.preflight import check_language
from fp4lab.train.task import LanguageTask


def train(
    config: RunConfig, *, folder: Path | None = None, on_event: OnEvent | None = None
) -> FitResult:
    """Train the language model of a config; see `fit` for events, errors and resuming.

    The folder defaults to `default_folder(config)`, so the same config goes on where it was. A
    recipe or held-out windows that do not fit are an InputError before it is made.
    """
    task = LanguageTask.from_config(config)
    recipe = find(config.recipe)
    check_language(task, {recipe.name: recipe}, config)
    return fit(
        task,
        recipe=recipe,
        config=config,
        folder=folder or default_folder(config),
        on_event=on_event,
    )


def default_folder(config: RunConfig) -> Path:
    """`runs/<preset>-<recipe>-<start of the config's hash>`."""
    return Path("runs") / f"{config.model.preset}-{Path(config.recipe).stem}-{config.hash[:8]}"
