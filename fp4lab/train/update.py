"""One update of the weights: microbatches, their summed gradient, clipping, AdamW.

    g = 1/M sum_m grad loss(batch[step M + m]),   m = 0 .. M - 1 over all processes

The loss and the gradient norm come to the host in one transfer a step, and a NaN or an infinity in
either stops the run before the optimizer has touched a weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor, nn

from fp4lab.errors import NonFiniteError
from fp4lab.instruments.nonfinite import CURE, Finding, describe, first_nonfinite
from fp4lab.optim import build_optimizer
from fp4lab.train.forward import Forward


@dataclass(frozen=True)
class Update:
    """What one update measured, over all processes."""

    loss: float
    grad_norm: float
    learning_rate: float
    #: Targets in the step, or microbatches if the task does not count targets.
    tokens: int
    #: Whether any process asked to stop.
    stop: bool


class Updater:
    """Makes the updates of a run."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.world = forward.world
        self.microbatches = forward.config.microbatches
        self.share = self.world.share(self.microbatches)
        self.schedule = forward.config.schedule()
        self.parameters = [p for p in forward.model.parameters() if p.requires_grad]
        optim = forward.config.optim
        self.clip_norm = optim.clip_norm or torch.inf
        self.optimizer = build_optimizer(
            forward.model,
            learning_rate=optim.learning_rate,
            weight_decay=optim.weight_decay,
            betas=(optim.beta1, optim.beta2),
            eps=optim.eps,
        )

    def update(self, step: int, *, stop: bool = False) -> Update:
        """Update number `step`, from 0; `stop` is this process's wish to end the run after it.

        Raises NonFiniteError, on all processes, with the weights as they were.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss, tokens = self._accumulate(step)
        flags = self._gradient_flags()
        numbers = torch.tensor([0.0, tokens, stop, *flags], dtype=torch.float64).to(loss.device)
        numbers[0] = loss
        self.world.sum(numbers)
        self.world.sum_gradients(self.parameters)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        values = torch.cat([numbers, norm.double().reshape(1)]).tolist()
        total_loss, total_tokens, stops, *used, grad_norm = values
        if not (isfinite(total_loss) and isfinite(grad_norm)):
            raise self._nonfinite(step, total_loss, grad_norm)
        self._drop_unused(used)
        rate = self.schedule.learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return Update(total_loss, grad_norm, rate, int(total_tokens), stops > 0)

    def _accumulate(self, step: int) -> tuple[Tensor, int]:
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        tokens = 0
        for microbatch in self.share:
            batch = self.forward.batch(step, microbatch)
            loss = self.forward.loss(step, microbatch, batch) / self.microbatches
            loss.backward()
            total += loss.detach()
            tokens += self.forward.num_tokens(batch)
        return total, tokens

    def _gradient_flags(self) -> list[bool]:
        # Alone, a parameter without a gradient is seen as such by the optimizer. Summing over
        # ranks gives every parameter one, so the ranks tell each other which are real.
        if self.world.size == 1:
            return []
        return [parameter.grad is not None for parameter in self.parameters]

    def _drop_unused(self, used: list[float]) -> None:
        for count, parameter in zip(used, self.parameters, strict=False):
            if count == 0:
                parameter.grad = None

    def _nonfinite(self, step: int, loss: float, grad_norm: float) -> NonFiniteError:
        found = [entry for entry in self.world.gather(self._search(step)) if entry is not None]
        if found:
            microbatch, finding = found[0]
            where = f"{finding}, in microbatch {microbatch}"
        else:
            self.world.sum_gradients(self.parameters)
            where = self._search_sum()
        return NonFiniteError(
            f"step {step + 1}: loss={loss}, gradient norm={grad_norm}; "
            f"first non-finite: {where}; the weights are still those of step {step}; {CURE}"
        )

    def _search(self, step: int) -> tuple[int, Finding] | None:
        self.optimizer.zero_grad(set_to_none=True)
        for microbatch in self.share:
            batch = self.forward.batch(step, microbatch)

            def loss(microbatch: int = microbatch, batch: object = batch) -> Tensor:
                return self.forward.loss(step, microbatch, batch) / self.microbatches

            finding = first_nonfinite(self.forward.model, loss)
            if finding is not None:
                return microbatch, finding
        return None

    def _search_sum(self) -> str:
        """Each microbatch is finite, so their sum or its norm has overflowed."""
        largest, where = -1.0, "none on a second run of the same batches: suspect the hardware"
        for name, parameter in self.forward.model.named_parameters():
            if parameter.grad is None:
                continue
            layer, _, local = name.rpartition(".")
            value = describe(parameter.grad)
            if value is not None:
                return str(Finding(layer, f"gradient of {local}, summed over microbatches", value))
            size = float(parameter.grad.abs().max())
            if size > largest:
                largest = size
                where = f"the norm itself; the largest gradient, {size:.3g}, is that of {name!r}"
        return where
