"""The held-out loss of a checkpoint is that of its run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fp4lab.errors import InputError
from fp4lab.train.config import FitConfig
from fp4lab.train.evaluation import evaluate
from tests.train.test_loop import Lines, run


def test_evaluate_repeats_the_number_of_the_run(
    counted_task: Any, fit_config: FitConfig, tmp_path: Path, lines: Lines
) -> None:
    config = dataclasses.replace(fit_config, checkpoint_every=5, keep_checkpoints=9)
    run(counted_task(), config, tmp_path)
    evals = {e["step"]: e for e in lines(tmp_path) if e["kind"] == "eval"}
    for step in (5, 10, 12):
        path = tmp_path / "checkpoints" / f"step-{step:08d}"
        found = evaluate(path, task=counted_task(), device="cpu")
        assert (found.step, found.loss) == (step, evals[step]["loss"])
        assert found.bits_per_byte == evals[step]["bits_per_byte"]
    assert evaluate(tmp_path, task=counted_task(), device="cpu").step == 12
    with pytest.raises(InputError, match="the text has sha256 bbbbbbbbbbbb"):
        evaluate(tmp_path, task=counted_task(data="b" * 64), device="cpu")


def test_evaluate_says_what_is_missing(
    small_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="does not exist"):
        evaluate(tmp_path / "absent")
    with pytest.raises(InputError, match="holds no checkpoint"):
        evaluate(tmp_path)
    run(small_task(), fit_config, tmp_path)
    with pytest.raises(InputError, match="does not say what was trained; give task="):
        evaluate(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        evaluate(tmp_path / "checkpoints" / "step-99999999", task=small_task())
