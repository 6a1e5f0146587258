"""Configurations: what is refused, and the sizes of the presets."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import pytest
import torch

from fp4lab.errors import InputError
from fp4lab.models import GPT, PRESETS, GPTConfig, get_preset

TINY = get_preset("gpt-tiny")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_kv_heads": 3}, ["num_heads=4", "num_kv_heads=3"]),
        ({"num_kv_heads": 8}, ["num_heads=4", "num_kv_heads=8"]),
        ({"head_dim": 15}, ["head_dim=15", "even"]),
        ({"dim": 0}, ["dim=0", "1 or more"]),
        ({"num_blocks": -1}, ["num_blocks=-1", "1 or more"]),
        ({"vocab_size": 256.0}, ["vocab_size=256.0", "whole number"]),
        ({"context_length": True}, ["context_length=True", "whole number"]),
        ({"activation": "relu"}, ["activation='relu'", "relu2"]),
        ({"norm_eps": 0.0}, ["norm_eps=0.0", "positive"]),
        ({"init_std": float("nan")}, ["init_std=nan", "positive"]),
        ({"rope_base": float("inf")}, ["rope_base=inf", "positive"]),
    ],
)
def test_a_wrong_shape_is_an_error_that_names_it(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        dataclasses.replace(TINY, **change)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_an_unknown_preset_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"preset='gpt-tinny'.*'gpt-tiny'"):
        get_preset("gpt-tinny")


def parameters(c: GPTConfig) -> int:
    """The number of parameters outside the embeddings, from the shape alone."""
    attention = c.dim * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads)
    mlp = c.dim * c.hidden_dim * {"swiglu": 3, "relu2": 2}[c.activation]
    return c.num_blocks * (attention + mlp + 2 * c.dim) + c.dim


@cache
def on_meta(name: str) -> GPT:
    with torch.device("meta"):
        return GPT(get_preset(name))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_on_the_meta_device(name: str) -> None:
    config, model = get_preset(name), on_meta(name)
    ends = config.vocab_size * config.dim * (1 if config.tied_head else 2)
    assert model.num_parameters() == parameters(config)
    assert model.num_parameters(embedding=True) == parameters(config) + ends
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("name", [name for name in PRESETS if PRESETS[name].num_blocks <= 32])
def test_presets_run_at_their_context_length(name: str) -> None:
    config = get_preset(name)
    logits_BTV = on_meta(name)(
        torch.zeros(1, config.context_length, dtype=torch.int64, device="meta")
    )
    assert logits_BTV.shape == (1, config.context_length, config.vocab_size)


@pytest.mark.parametrize(
    ("name", "embedding", "low", "high"),
    [
        ("gpt-tiny", False, 82_240, 82_240),  # 2 * (4 * 64**2 + 2 * 64 * 192) and five norms
        ("llama-30m", False, 29.5e6, 30.5e6),
        ("llama-100m", False, 97e6, 103e6),
        ("gpt-1.2b-nemotron", True, 1.2e9, 1.3e9),
        ("llama3-8b", True, 8_030_261_248, 8_030_261_248),  # as published, to the last one
        ("gpt3-175b", True, 174.5e9, 175.5e9),
    ],
)
def test_published_sizes(name: str, embedding: bool, low: float, high: float) -> None:
    assert low <= on_meta(name).num_parameters(embedding=embedding) <= high


def test_the_ablation_model_of_the_nvfp4_paper() -> None:
    """arXiv 2509.25149, appendix A.3, field by field."""
    config = get_preset("gpt-1.2b-nemotron")
    assert (config.num_blocks, config.dim, config.hidden_dim) == (20, 2048, 6144)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (16, 8, 128)
    assert (config.context_length, config.activation, config.tied_head) == (8192, "relu2", False)
