"""What is trained: a model, its batches and its loss, as pure functions of their arguments.

Because a batch is a function of its index, a run needs no data-loader state to resume, and several
processes share the batches of a step without talking to each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fp4lab.data import Corpus, Shards, TokenBatches, bits_per_byte, is_shards, load
from fp4lab.data.shards import TOKENIZER
from fp4lab.data.tokenizer import ByteTokenizer, Tokenizer
from fp4lab.errors import InputError
from fp4lab.models import GPT, GPTConfig, get_preset
from fp4lab.train.config import RunConfig


class Task(Protocol):
    """What `fit` trains. It should be picklable, so that runs can go to other processes."""

    def build_model(self) -> nn.Module:
        """A new model on the CPU; the caller has set torch's seed, which decides the weights."""

    def batch(self, index: int) -> Any:
        """Training batch `index` >= 0: a tensor, or tensors in tuples, lists or dictionaries."""

    def validation(self) -> Iterable[Any]:
        """The held-out batches, the same every time and equally large."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean loss over the targets of a batch, a scalar that can be differentiated."""


@runtime_checkable
class MeasuredTask(Protocol):
    """A task that knows what its data are and its loss means, by all of these methods."""

    def num_tokens(self, batch: Any) -> int:
        """Targets in a batch."""

    def bits_per_byte(self, loss: float) -> float:
        """A loss in nats per target as bits per byte of text."""

    def flops_per_token(self, model: nn.Module) -> float:
        """FLOPs of forward and backward for one target."""

    def identity(self) -> dict[str, Any]:
        """What the data is, as JSON: a run is resumed only with the same."""


@runtime_checkable
class TaskWithFiles(Protocol):
    """A task whose runs need files beside their checkpoints."""

    def files(self) -> dict[str, bytes]:
        """Names and contents of what is copied into a run's folder."""


@dataclass(frozen=True, kw_only=True)
class LanguageTask:
    """A GPT that predicts the next token of a text; the loss is in nats per token.

    Tokens are bytes, or those of shards. The text is read when it is first needed, once in each
    process.
    """

    model: GPTConfig
    source: str
    sequence_length: int
    batch_size: int
    validation_fraction: float
    eval_windows: int | None
    seed: int

    @classmethod
    def from_config(cls, config: RunConfig) -> LanguageTask:
        """The task of a run; InputError for an unknown preset or an impossible shape.

        Where the text is shards, their tokenizer is read for the size of the vocabulary.
        """
        source = config.data.source
        tokenizer = Shards.open(source).tokenizer if is_shards(source) else ByteTokenizer()
        return cls.without_text(config, tokenizer)

    @classmethod
    def without_text(cls, config: RunConfig, tokenizer: Tokenizer) -> LanguageTask:
        """The same, wherever the text is now, for the tokenizer of the run."""
        model = _shape(config, tokenizer)
        length = config.data.sequence_length
        if length > model.context_length:
            raise InputError(
                f"data.sequence_length={length} is longer than the model's context_length="
                f"{model.context_length}; shorten it or set model.context_length"
            )
        return cls(
            model=model,
            source=config.data.source,
            sequence_length=length,
            batch_size=config.batch_size,
            validation_fraction=config.data.validation_fraction,
            eval_windows=config.data.eval_windows,
            seed=config.seed,
        )

    def build_model(self) -> GPT:
        """A new GPT."""
        return GPT(self.model)

    def batch(self, index: int) -> tuple[Tensor, Tensor]:
        """(tokens_BT, targets_BT), int64."""
        return _batches(self).train(index)

    def validation(self) -> list[tuple[Tensor, Tensor]]:
        """Held-out windows spread evenly over the held-out text."""
        return _validation(self)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Cross entropy in nats per token, in float32."""
        tokens_BT, targets_BT = batch
        logits_BTV = model(tokens_BT)
        return nn.functional.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())

    def num_tokens(self, batch: tuple[Tensor, Tensor]) -> int:
        """Targets in a batch."""
        return batch[1].numel()

    def bits_per_byte(self, loss: float) -> float:
        """Nats per token as bits per byte of text."""
        return bits_per_byte(loss, _batches(self).tokens_per_byte)

    def flops_per_token(self, model: nn.Module) -> float:
        """FLOPs of forward and backward for one token at this sequence length."""
        assert isinstance(model, GPT)
        return float(model.flops_per_token(self.sequence_length))

    def identity(self) -> dict[str, Any]:
        """Name, size and SHA-256 of the text; of shards, the tokenizer too."""
        text = _batches(self).corpus
        if isinstance(text, Shards):
            return text.identity()
        return {"name": text.name, "num_bytes": text.num_bytes, "sha256": text.sha256}

    def files(self) -> dict[str, bytes]:
        """The tokenizer of shards, if it is a file."""
        text = _batches(self).corpus
        if isinstance(text, Corpus) or text.index.vocabulary.sha256 is None:
            return {}
        return {TOKENIZER: (text.folder / TOKENIZER).read_bytes()}


def _shape(config: RunConfig, tokenizer: Tokenizer) -> GPTConfig:
    """The model of a run: every preset knows bytes, and another tokenizer sets the vocabulary."""
    named, size = config.model.overrides(), tokenizer.vocab_size
    if tokenizer.sha256 is not None:
        named.setdefault("vocab_size", size)
    shape = replace(get_preset(config.model.preset), **named)
    if shape.vocab_size < size:
        raise InputError(
            f"model.vocab_size={shape.vocab_size} is less than the {size} tokens of the "
            "tokenizer; give more, or leave it out"
        )
    return shape


@lru_cache(maxsize=4)
def _batches(task: LanguageTask) -> TokenBatches:
    return TokenBatches(
        _text(task.source),
        sequence_length=task.sequence_length,
        batch_size=task.batch_size,
        seed=task.seed,
        validation_fraction=task.validation_fraction,
    )


def _text(source: str) -> Corpus | Shards:
    return Shards.open(source) if is_shards(source) else load(source)


@lru_cache(maxsize=4)
def _validation(task: LanguageTask) -> list[tuple[Tensor, Tensor]]:
    batches, wanted = _batches(task), task.eval_windows
    if wanted is not None and wanted > batches.validation_windows:
        raise InputError(
            f"data.eval_windows={wanted} is more than the {batches.validation_windows} windows of "
            f"{task.sequence_length} that the held-out text holds; give at most that many"
        )
    return batches.validation(wanted)


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with all its tensors on a device."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        values = [to_device(value, device) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return batch
