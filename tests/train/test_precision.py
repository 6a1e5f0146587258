from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fp4lab import recipes
from fp4lab.errors import InputError
from fp4lab.nn import Linear, convert, set_recipe, set_step
from fp4lab.optim import build_optimizer
from fp4lab.train import FitConfig, OptimConfig, evaluate, fit
from fp4lab.train import checkpoint as checkpoints
from fp4lab.train.config import RunConfig
from fp4lab.train.precision import Precision
from fp4lab.train.run import default_folder

BF16 = recipes.get("bf16")
NVFP4 = recipes.get("nvfp4")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))


def layer(model: nn.Sequential) -> Linear:
    first = model[0]
    assert isinstance(first, Linear)
    return first


def outputs(model: nn.Sequential) -> torch.Tensor:
    """Values and weight gradients, for both depend on the recipe."""
    x = torch.randn(32, 32, generator=torch.Generator().manual_seed(1))
    model.zero_grad()
    y: torch.Tensor = model(x)
    y.square().sum().backward()
    gradient = layer(model).weight.grad
    assert gradient is not None
    return torch.cat([y.detach(), gradient])


def test_no_recipe_leaves_the_model_alone() -> None:
    net = model()
    precision = Precision(net, None, FitConfig())
    precision.begin(3, 1)
    assert type(net[0]) is nn.Linear
    assert precision.report is None


def test_noise_is_a_function_of_seed_step_and_microbatch() -> None:
    net = model()
    precision = Precision(net, NVFP4, FitConfig())

    def at(step: int, microbatch: int) -> torch.Tensor:
        precision.begin(step, microbatch)
        return outputs(net)

    first = at(0, 0)
    others = [at(1, 0), at(0, 1), at(1, 1)]
    assert all(not torch.equal(first, other) for other in others)
    assert torch.equal(first, at(0, 0))
    net = model()
    precision = Precision(net, NVFP4, FitConfig(seed=1))
    assert not torch.equal(first, at(0, 0))


def test_a_run_is_the_loop_written_by_hand(small_task: Any, tmp_path: Path) -> None:
    """Stochastic rounding by step and microbatch, and a switch at its step, bit for bit."""

    class Wide(small_task):  # type: ignore[misc]
        def build_model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))

        def batch(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            x = torch.randn(16, 32, generator=torch.Generator().manual_seed(index))
            return x, x.flip(1)

    task, other = Wide(), recipes.get("nvfp4").without("rht")
    config = FitConfig(steps=6, microbatches=2, seed=7, device="cpu", threads=1)
    fit(task, recipe=NVFP4.switch(other, at=4), config=config, folder=tmp_path)
    saved = checkpoints.load(checkpoints.available(tmp_path / "checkpoints")[-1])

    torch.manual_seed(7)
    net = task.build_model()
    convert(net, NVFP4, seed=7)
    optimizer = build_optimizer(net, learning_rate=1.0)
    for step in range(6):
        if step == 4:
            set_recipe(net, other)
        optimizer.zero_grad()
        for microbatch in range(2):
            set_step(net, step, microbatch)
            (task.loss(net, task.batch(2 * step + microbatch)) / 2).backward()
        nn.utils.clip_grad_norm_(net.parameters(), config.optim.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = config.schedule().learning_rate(step)
        optimizer.step()
    for name, value in net.state_dict().items():
        assert torch.equal(saved.tensors["model"][name], value)


def test_switches_are_a_function_of_the_step_in_any_order() -> None:
    optim = OptimConfig(schedule="wsd", decay_fraction=0.5, warmup_fraction=0.0)
    config = FitConfig(steps=20, optim=optim)
    recipe = NVFP4.switch(BF16, at="decay", part="backward").switch(BF16, at=15)
    net = model()
    precision = Precision(net, recipe, config)
    for step in (0, 9, 10, 14, 15, 19, 12, 3):
        precision.begin(step)
        plain = model()
        Precision(plain, recipe.at(step, 10), config).begin(step)
        assert layer(net).recipe == layer(plain).recipe
        assert torch.equal(outputs(net), outputs(plain))
    precision.begin(0)
    before = outputs(net)
    precision.begin(15)
    assert not torch.equal(before, outputs(net))


def test_a_switch_can_begin_with_layers_left_alone() -> None:
    alone = recipes.Recipe(name="alone", rules=(recipes.Rule(use=None),))
    net = model()
    precision = Precision(net, alone.switch(NVFP4, at=2), FitConfig(steps=9))
    precision.begin(1)
    assert type(net[0]) is nn.Linear
    precision.begin(2)
    assert type(net[0]) is Linear


def test_a_switch_at_decay_needs_a_decay() -> None:
    config = FitConfig(optim=OptimConfig(schedule="constant"))
    with pytest.raises(InputError, match="never decays"):
        Precision(model(), NVFP4.switch(BF16, at="decay"), config)


def test_ragged_layers_follow_the_config() -> None:
    with pytest.raises(InputError):
        Precision(nn.Linear(20, 32), NVFP4, FitConfig())
    assert Precision(nn.Linear(20, 32), NVFP4, FitConfig(ragged="pad")).report is not None


def test_a_run_under_a_recipe_is_evaluated_under_it(
    small_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    class Wide(small_task):  # type: ignore[misc]
        def build_model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 1))

    config = dataclasses.replace(fit_config, ragged="pad")
    recipe = recipes.get("nvfp4_base").switch(recipes.get("mxfp8"), at=8)
    result = fit(Wide(), recipe=recipe, config=config, folder=tmp_path / "a")
    assert result.recipe == recipe.name
    assert evaluate(tmp_path / "a", task=Wide(), device="cpu").loss == result.val_loss
    with pytest.raises(InputError, match=r"differs in recipe \(hash"):
        fit(Wide(), recipe=BF16, config=config, folder=tmp_path / "a")
    plain = fit(Wide(), recipe=None, config=config, folder=tmp_path / "b")
    assert plain.val_loss != result.val_loss


def test_a_transformer_encoder_is_evaluated_under_the_recipe(
    small_task: Any, tmp_path: Path
) -> None:
    """In eval() without gradients, torch's fast path would not call the converted layers."""

    class Encoder(small_task):  # type: ignore[misc]
        def build_model(self) -> nn.Module:
            layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
            return nn.TransformerEncoder(layer, 1)

        def batch(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(index))
            return x, x.flip(2)

    task, config = Encoder(), FitConfig(steps=1, device="cpu", threads=1)
    result = fit(task, recipe=NVFP4, config=config, folder=tmp_path)
    assert torch.backends.mha.get_fastpath_enabled()
    net = task.build_model()
    convert(net, NVFP4)
    path = checkpoints.available(tmp_path / "checkpoints")[-1]
    net.load_state_dict(checkpoints.load(path).tensors["model"])
    losses = []
    for index, batch in enumerate(task.validation()):
        set_step(net, 0, index)
        # with gradients there is no fast path
        losses.append(task.loss(net.eval(), batch).item())
    assert result.val_loss == math.fsum(losses) / len(losses)
    assert evaluate(tmp_path, task=task, device="cpu").loss == result.val_loss


def test_the_folder_says_what_each_layer_got(small_task: Any, tmp_path: Path) -> None:
    class Named(small_task):  # type: ignore[misc]
        def build_model(self) -> nn.Module:
            layers = {"mlp_up": nn.Linear(4, 16), "tanh": nn.Tanh(), "head": nn.Linear(16, 1)}
            return nn.Sequential(OrderedDict(layers))

    config = FitConfig(steps=1, device="cpu", ragged="pad")
    fit(Named(), recipe=recipes.get("mxfp8"), config=config, folder=tmp_path)
    first, *rows = (tmp_path / "conversion.txt").read_text().splitlines()
    assert first.startswith("recipe mxfp8: 2 converted")
    numerics = {row.split()[0]: row.split()[3] for row in rows if "converted" in row}
    assert numerics == {"mlp_up": "mxfp8", "head": "bf16"}


def test_a_recipe_s_file_names_the_folder(tmp_path: Path) -> None:
    config = RunConfig(recipe=str(tmp_path / "mine.toml"))
    assert default_folder(config) == Path("runs") / f"gpt-tiny-mine-{config.hash[:8]}"
