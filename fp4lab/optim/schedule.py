"""The learning rate as a pure function of the step.

With s the number of updates already made, w the warm-up steps, d the onset of decay, n all steps,
p the peak and f the fraction of it that is left after the last update:

    s < w        p (s + 1) / w                              linear warm-up, never zero
    w <= s < d   p                                          stable
    d <= s       p (f + (1 - f) g(t)),  t = (s - d) / (n - d)
                 g(t) = 1 - t                    "wsd"
                 g(t) = (1 + cos(pi t)) / 2      "cosine", whose decay begins where warm-up ends

"constant" never decays. The decay reaches f after the last update and not at it, so that f = 0
wastes no update. torch.optim.lr_scheduler was left out: it keeps its own counter, which would be
one more state to save, while here a resumed run only needs its step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fp4lab.errors import InputError, unknown

Shape = Literal["wsd", "cosine", "constant"]
SHAPES: tuple[Shape, ...] = ("wsd", "cosine", "constant")


@dataclass(frozen=True)
class Schedule:
    """A learning-rate schedule over `steps` updates; the module's docstring has the formula.

    Raises:
        InputError: an unknown shape, or a warm-up and decay that do not fit in `steps`.

    >>> schedule = Schedule("wsd", peak=1.0, steps=10, warmup_steps=2, decay_steps=4)
    >>> [schedule.learning_rate(step) for step in (0, 1, 6, 8)]
    [0.5, 1.0, 1.0, 0.5]
    >>> schedule.decay_start
    6
    """

    shape: Shape
    peak: float
    steps: int
    warmup_steps: int = 0
    #: Used by "wsd" only: cosine decays over everything after the warm-up.
    decay_steps: int = 0
    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise unknown("schedule", self.shape, SHAPES)
        decay = self.decay_steps if self.shape == "wsd" else 0
        if self.warmup_steps < 0 or decay < 0 or self.warmup_steps + decay > self.steps:
            raise InputError(
                f"warmup_steps={self.warmup_steps} and decay_steps={decay} do not fit in "
                f"steps={self.steps}; shorten one of them or train for longer"
            )

    @property
    def decay_start(self) -> int | None:
        """The first step at which the rate may fall below its peak; None if it never does."""
        if self.shape == "constant":
            return None
        return self.warmup_steps if self.shape == "cosine" else self.steps - self.decay_steps

    def learning_rate(self, step: int) -> float:
        """The rate of the update that follows `step` updates.

        From `step = steps` on it is `peak * final_fraction`, or the peak where nothing decays.
        """
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        start = self.decay_start
        if start is None or step < start:
            return self.peak
        t = min(1.0, (step - start) / (self.steps - start)) if self.steps > start else 1.0
        remaining = 1.0 - t if self.shape == "wsd" else 0.5 * (1.0 + math.cos(math.pi * t))
        return self.peak * (self.final_fraction + (1.0 - self.final_fraction) * remaining)
