"""A run of a compiled model: the same training, and it resumes to the same bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fp4lab.train import DataConfig, ModelConfig, RunConfig, train
from tests.train.test_loop import DeathError, dying_at

pytestmark = pytest.mark.slow

TEXT = "All work and no play makes a model dull; numbers are 0123456789.\n" * 300


def test_a_compiled_gpt_trains_like_an_eager_one_and_resumes(
    tmp_path: Path,
    lines: Callable[[Path], list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    text = tmp_path / "text"
    text.mkdir()
    (text / "shining.txt").write_text(TEXT)
    config = RunConfig(
        steps=6,
        eval_every=3,
        checkpoint_every=3,
        batch_size=4,
        device="cpu",
        threads=1,
        recipe="nvfp4",
        compile=True,
        model=ModelConfig(dim=32, num_blocks=1, num_heads=2, num_kv_heads=2, hidden_dim=32),
        data=DataConfig(source=str(text), sequence_length=32, eval_windows=8),
    )
    whole = train(config, folder=tmp_path / "whole")

    with pytest.raises(DeathError):
        train(config, folder=tmp_path / "cut", on_event=dying_at(5, "train"))
    resumed = train(config, folder=tmp_path / "cut")
    assert resumed.val_loss == whole.val_loss
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")

    eager = train(dataclasses.replace(config, compile=False), folder=tmp_path / "eager")
    assert eager.val_loss is not None
    # inductor fuses norms and the loss, which changes last bits and so, now and then, a 4-bit code
    assert whole.val_loss == pytest.approx(eager.val_loss, rel=0.01)
