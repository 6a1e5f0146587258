from __future__ import annotations

import dataclasses
import doctest
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fp4lab.errors import InputError
from fp4lab.train import config as config_module
from fp4lab.train import toml
from fp4lab.train.config import (
    DataConfig,
    FitConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    differences,
)

FULL = RunConfig(
    steps=7,
    seed=2**63 - 1,
    time_limit=1.5,
    threads=2,
    device="cpu",
    compile=True,
    recipe='a "quoted"\\ näme\n\x7f\x01.toml',
    model=ModelConfig(preset="gpt-tiny", dim=32, activation="relu2", tied_head=False),
    data=DataConfig(validation_fraction=0.1),
    optim=OptimConfig(learning_rate=0.1 + 0.2, eps=1e-30, clip_norm=0.5, schedule="wsd"),
)


def test_docstring_example() -> None:
    assert doctest.testmod(config_module).failed == 0


def test_toml_round_trip_is_exact() -> None:
    for config in (FULL, RunConfig()):
        assert toml.loads(toml.dumps(config), RunConfig) == config
    assert tomllib.loads(toml.dumps(FULL))["optim"]["learning_rate"] == 0.1 + 0.2


def test_partial_file_takes_defaults_and_int_becomes_float(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('recipe = "nvfp4"\n[optim]\nlearning_rate = 1\n')
    loaded = toml.load(path, RunConfig)
    assert loaded == RunConfig(recipe="nvfp4", optim=OptimConfig(learning_rate=1.0))
    assert isinstance(loaded.optim.learning_rate, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step = 3", "field of config='step' is not known; did you mean 'steps'"),
        (
            "[optim]\nlearning_rat = 3",
            "field of config.optim='learning_rat' is not known; did you mean 'learning_rate'",
        ),
        ("steps = 2.5", "config.steps=2.5 should be an integer, not float"),
        ("steps = true", "config.steps=True should be an integer, not bool"),
        ("time_limit = 'x'", "config.time_limit='x' should be float, not str"),
        ("device = 'cpuu'", "device='cpuu' is not known; did you mean 'cpu'"),
        ("optim = 3", "config.optim=3 should be a table"),
        ("steps = ", "is not valid TOML"),
        ("steps = 0", "steps=0 is below 1"),
        ("time_limit = inf", "time_limit=inf is not a positive number"),
    ],
)
def test_bad_files_are_one_line_errors(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        toml.loads(text, RunConfig)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        toml.load(path, RunConfig)


@pytest.mark.parametrize(
    ("cls", "values"),
    [
        (OptimConfig, {"learning_rate": -1.0}),
        (OptimConfig, {"learning_rate": float("nan")}),
        (OptimConfig, {"beta2": 1.0}),
        (OptimConfig, {"final_fraction": 1.5}),
        (OptimConfig, {"clip_norm": -1.0}),
        (OptimConfig, {"schedule": "wsd", "warmup_fraction": 0.6, "decay_fraction": 0.6}),
        (DataConfig, {"validation_fraction": 1.0}),
        (DataConfig, {"sequence_length": 0}),
        (FitConfig, {"seed": -1}),
        (FitConfig, {"microbatches": 0}),
        (FitConfig, {"dtype": "float16"}),
        (RunConfig, {"batch_size": 0}),
    ],
)
def test_impossible_values_are_refused_when_built(cls: Any, values: dict[str, Any]) -> None:
    name, value = list(values.items())[-1]
    with pytest.raises(InputError, match=re.escape(f"{name}={value!r}")):
        cls(**values)


def test_hash_is_stable_and_ignores_what_cannot_change_a_weight() -> None:
    base = RunConfig()
    # Pinned: tables and folders of one version name runs by it.
    assert (
        RunConfig(steps=7, optim=OptimConfig(eps=1e-7)).hash
        == "577b859d79d3204b0d1289298bcc999955f65453b859aef5264b2f7509a8cd76"
    )
    operational = dataclasses.replace(
        base, time_limit=3.0, checkpoint_every=7, keep_checkpoints=9, peak_flops=1e12,
        tensorboard=True,
    )  # fmt: skip
    assert operational.hash == base.hash
    hashes = {
        base.hash,
        dataclasses.replace(base, steps=3).hash,
        dataclasses.replace(base, model=ModelConfig(dim=8)).hash,
        dataclasses.replace(base, optim=OptimConfig(eps=1e-7)).hash,
        FULL.hash,
    }
    assert len(hashes) == 5
    assert RunConfig(optim=OptimConfig(learning_rate=1)).hash == (
        RunConfig(optim=OptimConfig(learning_rate=1.0)).hash
    )


def test_differences_are_named_with_both_values() -> None:
    old = RunConfig(steps=100, time_limit=1.0)
    new = RunConfig(steps=200, optim=OptimConfig(beta1=0.8))
    assert differences(old, new) == ["optim.beta1 (0.9, now 0.8)", "steps (100, now 200)"]
    assert differences(old, old) == []


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 7, 1001])
def test_every_length_of_run_has_a_schedule(steps: int) -> None:
    optim = OptimConfig(schedule="wsd", warmup_fraction=0.5, decay_fraction=0.5)
    schedule = FitConfig(steps=steps, optim=optim).schedule()
    assert schedule.warmup_steps + schedule.decay_steps <= steps
