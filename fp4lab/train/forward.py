"""The loss of one microbatch, the same wherever and however often it is computed.

Everything random is a function of (seed, step, microbatch): rounding noise through
`nn.set_step`, and what a model draws itself, such as dropout, through torch's generator, which is
seeded for each microbatch. So there is no random state to save, and a pass can be repeated.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fp4lab.errors import NonFiniteError
from fp4lab.instruments.nonfinite import CURE, first_nonfinite
from fp4lab.recipes import Recipe
from fp4lab.train.config import FitConfig
from fp4lab.train.precision import Precision
from fp4lab.train.task import MeasuredTask, Task, to_device
from fp4lab.train.world import World


@dataclass(frozen=True)
class Forward:
    """A model, what it is trained on and the precision it runs in."""

    task: Task
    model: nn.Module
    precision: Precision
    config: FitConfig
    world: World

    @classmethod
    def build(cls, task: Task, recipe: Recipe | None, config: FitConfig, world: World) -> Forward:
        """The model with its initial weights, converted, on its device and perhaps compiled."""
        torch.manual_seed(config.seed)
        model = task.build_model()
        precision = Precision(model, recipe, config)
        model.to(world.device)
        if config.compile:
            # In place: wrapping by torch.compile(model) would rename every parameter.
            model.compile()
        return cls(task, model, precision, config, world)

    def batch(self, step: int, microbatch: int) -> Any:
        """A training microbatch of a step, on this process's device."""
        index = step * self.config.microbatches + microbatch
        return to_device(self.task.batch(index), self.world.device)

    def loss(self, step: int, microbatch: int, batch: Any) -> Tensor:
        """The mean loss of a batch, under the noise of this step and microbatch (both from 0)."""
        self.precision.begin(step, microbatch)
        self._seed(step, microbatch)
        with self._autocast():
            return self.task.loss(self.model, batch)

    def num_tokens(self, batch: Any) -> int:
        """Targets in a batch; 1 for a task that does not count them."""
        return self.task.num_tokens(batch) if isinstance(self.task, MeasuredTask) else 1

    @torch.no_grad()
    def validation_losses(self, updates: int) -> list[float]:
        """The loss of every held-out batch after so many updates, the same on all processes.

        The batches are shared out, and each loss is computed by one process alone, so the numbers
        do not depend on how many there are.
        """
        batches = list(self.task.validation())
        losses = torch.zeros(len(batches), dtype=torch.float64, device=self.world.device)
        # The recipe in force is that of the last update made.
        step = max(0, updates - 1)
        self.model.eval()
        try:
            for index in range(self.world.rank, len(batches), self.world.size):
                batch = to_device(batches[index], self.world.device)
                losses[index] = self.loss(step, index, batch).double()
        finally:
            self.model.train()
        return [float(loss) for loss in self.world.sum(losses).tolist()]

    def nonfinite(self, index: int, updates: int, batch: Any) -> NonFiniteError:
        """The error for a batch without a finite loss after so many updates, with the layer."""

        def loss() -> Tensor:
            return self.loss(max(0, updates - 1), index, batch).detach()

        self.model.eval()
        finding = first_nonfinite(self.model, loss)
        self.model.train()
        where = f"{finding}; {CURE}" if finding else "none on a second run: suspect the hardware"
        return NonFiniteError(
            f"step {updates}: held-out batch {index} has no finite loss; first non-finite: {where}"
        )

    @torch.no_grad()
    def predict(self, updates: int, index: int, inputs: Tensor) -> Tensor:
        """What the model gives after so many updates, as in an evaluation of batch `index`."""
        self.precision.begin(max(0, updates - 1), index)
        self.model.eval()
        with self._autocast():
            output: Tensor = self.model(inputs)
        return output

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.config.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.world.device.type, dtype=torch.bfloat16)

    def _seed(self, step: int, microbatch: int) -> None:
        packed = struct.pack("<3q", self.config.seed, step, microbatch)
        seed = int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")
        # torch.manual_seed seeds every backend there is and takes 100 times as long.
        torch.default_generator.manual_seed(seed)
        if self.world.device.type == "cuda":
            torch.cuda.default_generators[self.world.device.index].manual_seed(seed)


@contextmanager
def reproducible(config: FitConfig, device: torch.device) -> Iterator[None]:
    """Deterministic algorithms, the config's threads, and layers that call the layers in them.

    All global state is put back after.
    """
    threads = torch.get_num_threads()
    fast = torch.backends.mha.get_fastpath_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    on_gpu = device.type == "cuda"
    try:
        # In eval() without gradients, the fast path of nn.TransformerEncoderLayer reads the weights
        # of its Linear layers and never calls them: a converted model would not be quantized there.
        torch.backends.mha.set_fastpath_enabled(False)
        torch.set_num_threads(config.threads)
        if on_gpu:
            # cuBLAS reads this when it starts; without it, it may add in another order each time.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        with torch.random.fork_rng(devices=[device.index] if on_gpu else []):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
