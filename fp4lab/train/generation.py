"""Text from a trained language model, one token after another.

Every token is drawn after a whole forward pass over what precedes it, at most as many tokens as a
window of the training has; an older beginning falls away. Left out: a key-value cache. With it a
pass would have one row, and so other block and tensor scales than the model was trained with; here
speed matters less than that the numerics are those of the run.

Shape letters: V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from fp4lab.data.tokenizer import Tokenizer
from fp4lab.errors import InputError, NonFiniteError, whole
from fp4lab.recipes import Recipe, find
from fp4lab.train.config import RunConfig
from fp4lab.train.evaluation import restored
from fp4lab.train.forward import Forward, reproducible
from fp4lab.train.task import LanguageTask
from fp4lab.train.trained import choose, language_config, own_recipe, own_tokenizer, run_of
from fp4lab.train.world import World, choose_device

Logits = npt.NDArray[np.float64]


def generate(
    path: str | Path,
    prompt: str | bytes,
    *,
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
    recipe: str | Recipe | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> Iterator[str]:
    """The text that a checkpoint continues a prompt with, piece by piece as it is drawn.

    The same arguments give the same text on the same machine. The text ends early where the model
    draws the token that ends a document. What is no UTF-8 becomes U+FFFD.

    Args:
        path: a checkpoint's folder, or a run's folder for its newest checkpoint.
        prompt: begins a document; it may be empty where the tokenizer has a token between
            documents.
        tokens: how many to draw.
        temperature: that logits are divided by; 0 takes the likeliest token.
        top_k: draw from the k likeliest tokens only; None from all.
        seed: of the draws.
        recipe: a name, the path of a TOML file or a recipe that the model is run under; None: its
            own.
        device: where to run.

    Raises:
        InputError: as `evaluate`, for arguments out of range, a prompt that is no text and a recipe
            that does not fit the model; all at the call, before the first piece.
        NonFiniteError: logits with a NaN or an infinity.

    >>> from fp4lab.train import DataConfig, train
    >>> _ = Path("text.txt").write_bytes(b"Some text. " * 800)
    >>> config = RunConfig(steps=1, data=DataConfig(source="text.txt"))
    >>> _ = train(config, folder=Path("run"))
    >>> len("".join(generate("run", "Some ", tokens=40))) > 9
    True
    """
    whole("tokens", tokens, 1, 2**31 - 1)
    whole("seed", seed, 0, 2**64 - 1)
    if top_k is not None:
        whole("top_k", top_k, 1, 2**31 - 1)
    if not 0 <= temperature < math.inf:
        raise InputError(f"temperature={temperature} is not a number from 0 on; give one such")
    chosen = choose(Path(path))
    run = run_of(chosen)
    # Any number of tokens should fit, and each length would be compiled anew.
    config = dataclasses.replace(language_config(run), device=device, ragged="pad", compile=False)
    tokenizer = own_tokenizer(run)
    given = _prompt(prompt, tokenizer)
    used = own_recipe(run) if recipe is None else find(recipe)
    draws = _Draws(temperature, top_k, seed)
    return _continued(_Model.load(chosen, config, used, tokenizer), given, tokens, draws)


def _prompt(prompt: str | bytes, tokenizer: Tokenizer) -> list[int]:
    try:
        # A word of a command line may hold bytes that are no UTF-8.
        text = prompt if isinstance(prompt, bytes) else prompt.encode("utf-8", "surrogateescape")
        found = [int(token) for token in tokenizer.encode([text])[0]]
    except UnicodeError:
        raise InputError("prompt is not UTF-8 text, which this model's tokenizer needs") from None
    if tokenizer.boundary is not None:
        return [tokenizer.boundary, *found]
    if not found:
        raise InputError("prompt is empty; give at least one character to begin with")
    return found


@dataclass(frozen=True)
class _Model:
    """A model on its device."""

    forward: Forward
    updates: int
    tokenizer: Tokenizer
    window: int

    @classmethod
    def load(
        cls, checkpoint: Path, config: RunConfig, recipe: Recipe | None, tokenizer: Tokenizer
    ) -> _Model:
        task = LanguageTask.without_text(config, tokenizer)
        device = choose_device(config.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        with reproducible(config, device):
            forward, updates = restored(checkpoint, task, recipe, config, World(0, 1, device))
        return cls(forward, updates, tokenizer, task.sequence_length)

    def logits(self, tokens: Sequence[int], index: int) -> Logits:
        """Of the token that follows, without those that the tokenizer does not know."""
        device = self.forward.world.device
        inputs_BT = torch.tensor([tokens[-self.window :]], dtype=torch.int64, device=device)
        # Only in here: what the caller does between two tokens is none of our business.
        with reproducible(self.forward.config, device):
            logits_BTV = self.forward.predict(self.updates, index, inputs_BT)
            logits_V = logits_BTV[0, -1, : self.tokenizer.vocab_size].double().cpu().numpy()
        if not np.isfinite(logits_V).all():
            raise NonFiniteError(
                f"the logits of token {index + 1} hold a NaN or an infinity; try --recipe bf16, or "
                "`fp4lab eval`, which names the layer"
            )
        return np.asarray(logits_V)


class _Draws:
    """Tokens from logits, by numbers of Philox that depend on the seed alone."""

    def __init__(self, temperature: float, top_k: int | None, seed: int) -> None:
        self.temperature = temperature
        self.top_k = top_k
        self._numbers = np.random.Philox(key=np.array([seed, 0], np.uint64))

    def token(self, logits_V: Logits) -> int:
        """The next one: by the inverse of the cumulated probabilities of the likeliest tokens."""
        if self.temperature == 0:
            return int(logits_V.argmax())
        order = np.argsort(-logits_V, kind="stable")[: self.top_k]
        # Logits minus the largest before the division, which so cannot overflow at the top.
        with np.errstate(over="ignore"):
            weights = np.exp((logits_V[order] - logits_V[order[0]]) / self.temperature)
        total = np.cumsum(weights)
        uniform = int(self._numbers.random_raw() >> 11) * 2.0**-53
        place = int(np.searchsorted(total, uniform * total[-1], side="right"))
        # The product may round up to the whole.
        return int(order[min(place, len(order) - 1)])


class _TextStream:
    """Tokens into text that is whole: what may be the beginning of a character is held back."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int]) -> None:
        self._tokenizer = tokenizer
        #: decoded together with what follows, as a tokenizer may join or part words there
        self._before = prompt[-1:]
        self._held: list[int] = []

    def push(self, token: int) -> str:
        self._held.append(token)
        text = self._text()
        return "" if text.endswith("\ufffd") else self._flushed(text)

    def end(self) -> str:
        return self._flushed(self._text()) if self._held else ""

    def _text(self) -> str:
        before = self._tokenizer.decode(self._before)
        return self._tokenizer.decode([*self._before, *self._held])[len(before) :]

    def _flushed(self, text: str) -> str:
        self._before, self._held = self._held, []
        return text


def _continued(model: _Model, prompt: list[int], count: int, draws: _Draws) -> Iterator[str]:
    tokens, text = list(prompt), _TextStream(model.tokenizer, prompt)
    for index in range(count):
        token = draws.token(model.logits(tokens, index))
        if token == model.tokenizer.boundary:
            break
        tokens.append(token)
        if piece := text.push(token):
            yield piece
    if rest := text.end():
        yield rest
