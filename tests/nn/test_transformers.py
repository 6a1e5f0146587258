"""A converted model in the Trainer of transformers: a callback sets the step of the noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fp4lab

pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
transformers = pytest.importorskip("transformers", reason="pip install transformers")

pytestmark = pytest.mark.slow

STEPS, ACCUMULATED = 8, 2


class RoundingNoise(transformers.TrainerCallback):
    """What a user writes: the step, and the number of the microbatch in it."""

    def on_step_begin(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        self.microbatch = 0
        fp4lab.set_step(model, state.global_step)

    def on_substep_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        self.microbatch += 1
        fp4lab.set_step(model, state.global_step, self.microbatch)


def build() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
    return transformers.LlamaForCausalLM(config)


def rows() -> list[dict[str, torch.Tensor]]:
    """Counting by threes from 64 numbers."""
    ids = (torch.arange(64)[:, None] + 3 * torch.arange(16)) % 64
    return [{"input_ids": row, "labels": row} for row in ids]


def trainer(folder: Path, model: Any) -> Any:
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=ACCUMULATED,
        learning_rate=1e-2,
        logging_steps=1,
        save_steps=STEPS // 2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=rows(), callbacks=[RoundingNoise()]
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder and the trainer of a finished run."""
    folder = tmp_path_factory.mktemp("trained")
    model = build()
    report = fp4lab.convert(model, "nvfp4")
    assert len(report.names("converted")) == 2 * 7 + 1
    made = trainer(folder, model)
    made.train()
    return folder, made


def test_the_loss_falls_and_every_microbatch_has_noise_of_its_own(
    trained: tuple[Path, Any],
) -> None:
    _, made = trained
    losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] - 0.5
    layer = made.model.model.layers[0].mlp.up_proj
    assert layer.noise[2:].tolist() == [STEPS - 1, ACCUMULATED - 1]


def test_a_checkpoint_loads_into_the_unconverted_model_and_back(
    trained: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, made = trained
    ids = rows()[0]["input_ids"][None]
    plain = transformers.LlamaForCausalLM.from_pretrained(folder / f"checkpoint-{STEPS}")
    ours = made.model.eval()
    assert list(plain.state_dict()) == list(ours.state_dict())
    with torch.no_grad():
        with fp4lab.disabled(ours):
            assert torch.equal(plain(ids).logits, ours(ids).logits)
        fp4lab.convert(plain, "nvfp4")
        assert torch.equal(plain(ids).logits, ours(ids).logits)
    plain.save_pretrained(tmp_path)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path)
    for name, value in again.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name])


def test_a_run_that_goes_on_ends_with_the_same_bits(
    trained: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, made = trained
    model = build()
    fp4lab.convert(model, "nvfp4")
    middle = folder / f"checkpoint-{STEPS // 2}"
    trainer(tmp_path, model).train(resume_from_checkpoint=str(middle))
    for name, value in model.state_dict().items():
        assert torch.equal(value, made.model.state_dict()[name])


def test_gradient_checkpointing_gives_the_same_bits(
    trained: tuple[Path, Any], tmp_path: Path
) -> None:
    _, made = trained
    model = build()
    fp4lab.convert(model, "nvfp4")
    new, old = "activation_checkpointing_enable", "gradient_checkpointing_enable"
    getattr(model, new if hasattr(model, new) else old)()
    trainer(tmp_path, model).train()
    for name, value in model.state_dict().items():
        assert torch.equal(value, made.model.state_dict()[name])
