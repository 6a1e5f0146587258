"""A run that meets a NaN, an infinity or no gradient at all says where, and saves nothing of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fp4lab.errors import NonFiniteError
from fp4lab.train import checkpoint as checkpoints
from fp4lab.train.config import FitConfig
from fp4lab.train.metrics import Event
from tests.train.test_loop import DeathError, Lines, assert_same_run, dying_at, run


def test_a_nan_stops_before_a_weight_changes(
    small_task: Any, fit_config: FitConfig, tmp_path: Path, lines: Lines
) -> None:
    # Batch 13 is microbatch 1 of the seventh step.
    with pytest.raises(NonFiniteError) as caught:
        run(small_task(poisoned=13), fit_config, tmp_path / "bad")
    message = str(caught.value)
    assert "step 7: loss=nan" in message
    assert "first non-finite: layer '(model)', input (NaN), in microbatch 1" in message
    assert message.endswith("those of step 6; lower the learning rate, keep that layer in high "
                            "precision, or check the data")  # fmt: skip
    assert "\n" not in message
    assert lines(tmp_path / "bad")[-1]["reason"] == "non-finite"
    # What was saved before is whole: cured, the run goes on to the bits of one never poisoned.
    assert run(small_task(), fit_config, tmp_path / "bad").finished
    run(small_task(), fit_config, tmp_path / "good")
    assert_same_run(tmp_path / "good", tmp_path / "bad", lines)


def test_a_gradient_that_overflows_names_layer_and_tensor(
    small_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    class Steep(small_task):  # type: ignore[misc]
        def build_model(self) -> nn.Module:
            first, second = nn.Linear(4, 8), nn.Linear(8, 1)
            with torch.no_grad():
                second.weight.fill_(3e38)
                first.weight.zero_()
                first.bias.zero_()
            return nn.Sequential(first, second)

        def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            result: Tensor = model(batch[0]).sum() * 10
            return result

    with pytest.raises(NonFiniteError, match=r"layer '1', gradient of the input \(Inf\)"):
        run(Steep(), fit_config, tmp_path)


def test_an_overflow_of_the_norm_alone_is_told_apart(
    small_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    class Huge(small_task):  # type: ignore[misc]
        def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            return model.get_parameter("4.weight").sum() * 1e38

    with pytest.raises(NonFiniteError, match=r"the norm itself; .* is that of '4.weight'"):
        run(Huge(), fit_config, tmp_path)


def test_weights_broken_by_the_update_are_not_saved(
    small_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    optim = dataclasses.replace(
        fit_config.optim, learning_rate=3e38, schedule="constant", warmup_fraction=0.0
    )
    config = dataclasses.replace(fit_config, optim=optim, checkpoint_every=1, eval_every=100)
    with pytest.raises(NonFiniteError, match=r"step 1: the update made parameter '0.weight'"):
        run(small_task(), config, tmp_path)
    assert checkpoints.available(tmp_path / "checkpoints") == []


@pytest.mark.parametrize("death", [(5, "notice"), (9, "train")])
def test_gradients_that_all_vanish_are_told_once_a_run(
    small_task: Any, fit_config: FitConfig, tmp_path: Path, lines: Lines, death: tuple[int, str]
) -> None:
    class Vanishing(small_task):  # type: ignore[misc]
        def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            # Batches 8 and 9 are the fifth step's; the other steps that vanish come after it.
            seen = batch[0].sum()
            late = any(torch.equal(seen, self.batch(i)[0].sum()) for i in (8, 9, 14, 15, 22, 23))
            loss: Tensor = super().loss(model, batch)
            return 0.0 * loss if late else loss

    events: list[Event] = []
    run(Vanishing(), fit_config, tmp_path / "whole", on_event=events.append)
    written = lines(tmp_path / "whole")
    assert [e["step"] for e in written if e.get("grad_norm") == 0.0] == [5, 8, 12]
    (notice,) = (event for event in written if event["kind"] == "notice")
    assert notice in events
    assert notice["step"] == 5
    assert notice["text"].startswith("step 5: the gradient norm is exactly zero, so the model")
    assert "check that the loss depends on the parameters" in notice["text"]
    with pytest.raises(DeathError):
        run(Vanishing(), fit_config, tmp_path / "cut", on_event=dying_at(*death))
    run(Vanishing(), fit_config, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut", lines)


def test_a_nan_in_held_out_data_is_named(
    small_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    message = r"step 5: held-out batch 1 has no finite loss; .*layer '\(model\)', input \(NaN\)"
    with pytest.raises(NonFiniteError, match=message):
        run(small_task(poisoned=10_001), fit_config, tmp_path)
