"""What the report tells of a comparison before anything is found: model, training, settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from fp4lab.models import GPT
from fp4lab.train.config import FitConfig, RunConfig, identity
from fp4lab.train.task import LanguageTask
from fp4lab.train.world import choose_device

PER_RUN = ("seed", "threads", "recipe")

Facts = dict[str, dict[str, str]]


def settings(config: FitConfig) -> dict[str, Any]:
    """The fields that must not change between two calls for the same folder."""
    return {key: value for key, value in identity(config).items() if key not in PER_RUN}


def module_facts(model: nn.Module, config: FitConfig) -> Facts:
    """Of a user's own module."""
    facts = {"name": type(model).__name__, "parameters": _count(model)}
    return {"Model": facts, **_training_facts(config)}


def run_facts(model: GPT, config: RunConfig, task: LanguageTask) -> Facts:
    """Of a GPT on text."""
    shape = {key: str(value) for key, value in dataclasses.asdict(task.model).items()}
    tokens, inner = tokens_of(config), model.num_parameters(embedding=False)
    facts = _training_facts(config)
    facts["Training"] |= {
        "tokens": f"{tokens:,}",
        "tokens per parameter": f"{tokens / inner:.1f}",
        "batch": f"{config.batch_size} sequences of {config.data.sequence_length} tokens",
    }
    sizes = {"parameters": _count(model), "parameters without embeddings": f"{inner:,}"}
    data = {key.replace("num_", ""): str(value) for key, value in task.identity().items()}
    return {"Model": {"name": config.model.preset, **sizes, **shape}, **facts, "Data": data}


def tokens_of(config: RunConfig) -> int:
    """Tokens that a run is trained on."""
    return config.steps * config.microbatches * config.batch_size * config.data.sequence_length


def _count(model: nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in model.parameters()):,}"


def _training_facts(config: FitConfig) -> Facts:
    """The training, and the settings that differ from the defaults."""
    default = settings(type(config)())
    changed = {key: str(value) for key, value in settings(config).items() if value != default[key]}
    training = {
        "steps": f"{config.steps:,}",
        "device": choose_device(config.device).type,
        "dtype": config.dtype,
    }
    other = {"Settings other than the defaults": changed} if changed else {}
    return {"Training": training, **other}
