"""The training loop: update, log, evaluate, save; the same bits however often it is interrupted.

The order within a step is fixed: the weights change, the step's line is written, the evaluation's
line is written, then the checkpoint. So whatever a checkpoint counts on is already in metrics.jsonl
when it appears, and a resumed run drops what is beyond it and writes it again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from fp4lab.errors import NonFiniteError
from fp4lab.instruments.nonfinite import CURE, describe
from fp4lab.recipes import Recipe
from fp4lab.specs.lock import only_one
from fp4lab.train import checkpoint as checkpoints
from fp4lab.train import environment, metrics
from fp4lab.train import folder as folders
from fp4lab.train.checkpoint import Checkpoint, State
from fp4lab.train.config import FitConfig, check_threads
from fp4lab.train.evaluation import eval_event
from fp4lab.train.folder import CHECKPOINTS, METRICS, FitResult, RunRecord
from fp4lab.train.forward import Forward, reproducible
from fp4lab.train.logs import Logs, check_installed
from fp4lab.train.metrics import Event, MetricsFile
from fp4lab.train.stop import StopRequest
from fp4lab.train.task import MeasuredTask, Task, TaskWithFiles
from fp4lab.train.tensors import (
    model_tensors,
    optimizer_tensors,
    restore_model,
    restore_optimizer,
)
from fp4lab.train.throughput import peak_flops
from fp4lab.train.update import Update, Updater
from fp4lab.train.world import World, choose_device, join

OnEvent = Callable[[Event], None]


def fit(
    task: Task,
    *,
    recipe: Recipe | None,
    config: FitConfig,
    folder: Path,
    on_event: OnEvent | None = None,
) -> FitResult:
    """Train a task under a precision recipe, or go on with the run in `folder`.

    `recipe=None` trains the model as it is. `on_event` gets, in this process, every line of
    metrics.jsonl and besides {"kind": "begin", "step", "text"}, {"kind": "checkpoint", "step",
    "path"} and more of {"kind": "notice", "step", "text"}; under torchrun only rank 0 writes and
    reports. A finished run returns its result at once. SIGTERM, Ctrl-C and `config.time_limit` save
    a checkpoint and return with `finished=False`.

    Raises InputError if the folder holds another run or another process trains there, OSError if it
    cannot be written, and NonFiniteError, with step, layer and tensor, before a NaN or an infinity
    reaches a weight; the checkpoints before it stay.
    """
    check_threads(config.threads)
    check_installed(config)
    device = choose_device(config.device)
    with join(device) as world, reproducible(config, device):
        run = _Run(task, recipe, config, folder=folder, world=world, on_event=on_event)
        return run.finished() or run.train()


class _Run:
    """One process's part in a run."""

    def __init__(
        self,
        task: Task,
        recipe: Recipe | None,
        config: FitConfig,
        *,
        folder: Path,
        world: World,
        on_event: OnEvent | None,
    ) -> None:
        self.task = task
        self.recipe = recipe
        self.config = config
        self.folder = folder
        self.world = world
        self.listeners = [on_event] if on_event is not None and world.rank == 0 else []
        self.measured = task if isinstance(task, MeasuredTask) else None
        self.data = self.measured.identity() if self.measured else None
        self.tokens = 0
        self.step = 0
        self.log: MetricsFile | None = None
        self.logs: Logs | None = None
        self.vanished = False
        # The time limit counts from here, signals only while the loop can grant them.
        self.stop = StopRequest(config.time_limit)
        if world.rank == 0:
            self.record = RunRecord.make(
                config, recipe=recipe, data=self.data, environment=environment.describe(world)
            )
            folders.check(folder, config, self.record)

    def finished(self) -> FitResult | None:
        """The result, if the run has come to its end before; the same answer on all ranks."""
        result: FitResult | None = self.world.agree(
            FitResult.load(self.folder) if self.world.rank == 0 else None
        )
        return result

    def train(self) -> FitResult:
        """Train from the newest checkpoint, or from the start, to the end or a wish to stop."""
        self.forward = Forward.build(self.task, self.recipe, self.config, self.world)
        self.updater = Updater(self.forward)
        self.flops = self._relative_flops()
        # Only now, for what has failed so far should not leave a run behind.
        if self.world.rank > 0:
            return self._train()
        with only_one(self.folder, argument="folder", user="a run"):
            folders.enter(self.folder, self.config, self.record, report=self._notice)
            folders.create(
                self.folder,
                self.config,
                self.record,
                recipe=self.recipe,
                conversion=self.forward.precision.report,
                files=self.task.files() if isinstance(self.task, TaskWithFiles) else {},
            )
            return self._train()

    def _train(self) -> FitResult:
        self._report({"kind": "begin", "step": self.step, "text": self._what()})
        self._restore()
        if self.world.rank == 0:
            self._open_logs()
        try:
            with self.stop:
                reason = self._loop()
            self._event({"kind": "end", "step": self.step, "reason": reason})
        except NonFiniteError as error:
            self._event(
                {"kind": "end", "step": self.step, "reason": "non-finite", "error": str(error)}
            )
            raise
        finally:
            if self.logs is not None:
                self.logs.close()
            if self.log is not None:
                self.log.close()
        result = self._result(finished=reason == "finished")
        if result.finished and self.world.rank == 0:
            result.save()
        return result

    def _open_logs(self) -> None:
        self.log = MetricsFile(self.folder / METRICS, step=self.step)
        history = metrics.read(self.log.path)
        self.vanished = any(event["kind"] == "notice" for event in history)
        self.logs = Logs(
            self.config, self.folder, step=self.step, history=history, report=self._notice
        )

    def _what(self) -> str:
        model, conversion = self.forward.model, self.forward.precision.report
        size = sum(parameter.numel() for parameter in model.parameters())
        numerics = "no recipe" if conversion is None else conversion.summary
        return f"{self.folder}: {size:,} parameters, {numerics}"

    def _loop(self) -> str:
        config, stop = self.config, self.stop
        while self.step < config.steps:
            began = time.perf_counter()
            update = self.updater.update(self.step, stop=stop.reason is not None)
            seconds = time.perf_counter() - began
            self.step += 1
            self.tokens += update.tokens
            is_last = self.step == config.steps
            # The ranks have agreed on `update.stop`; alone, the newest wish counts at once.
            halt = update.stop or (self.world.size == 1 and stop.reason is not None)
            if self.step % config.log_every == 0 or is_last:
                self._event(self._train_event(update, seconds))
            if update.grad_norm == 0.0 and not self.vanished:
                self.vanished = True
                self._event({"kind": "notice", "step": self.step, "text": _vanished(self.step)})
            if self.step % config.eval_every == 0 or is_last:
                self._evaluate()
            if self.step % config.checkpoint_every == 0 or is_last or halt:
                self._save()
            if halt and not is_last:
                # The wish of the first rank that has one: a signal may have reached one alone.
                reasons: list[str | None] = self.world.gather(stop.reason)
                return next(reason for reason in reasons if reason is not None)
        return "finished"

    def _train_event(self, update: Update, seconds: float) -> Event:
        speed = update.tokens / seconds
        event = {
            "kind": "train",
            "step": self.step,
            "loss": update.loss,
            "lr": update.learning_rate,
            "grad_norm": update.grad_norm,
            "tokens": self.tokens,
            "tokens_per_second": speed,
            "step_time": seconds,
        }
        if self.flops is not None:
            event["mfu"] = speed * self.flops
        return event

    def _relative_flops(self) -> float | None:
        """FLOPs of one token as a part of what all devices do in a second; None if not known."""
        peak = self.config.peak_flops or peak_flops(self.world.device)
        if self.measured is None or peak is None:
            return None
        return self.measured.flops_per_token(self.forward.model) / (peak * self.world.size)

    def _evaluate(self) -> None:
        losses = self.forward.validation_losses(self.step)
        if losses:
            self._event(eval_event(self.forward, losses, self.step))

    def _save(self) -> None:
        # An update can overflow although loss and gradients were finite.
        for name, parameter in self.forward.model.named_parameters():
            if (value := describe(parameter)) is not None:
                raise NonFiniteError(
                    f"step {self.step}: the update made parameter {name!r} non-finite ({value}); "
                    f"no checkpoint is saved of it; {CURE}"
                )
        if self.world.rank > 0:
            return
        assert self.log is not None
        self.log.sync()
        tensors, tied = model_tensors(self.forward.model)
        optimizer = optimizer_tensors(self.updater.optimizer, self.forward.model)
        state = State(step=self.step, tokens=self.tokens, tied=tied, config_hash=self.config.hash)
        saved = Checkpoint(state, {"model": tensors, "optimizer": optimizer})
        root = self.folder / CHECKPOINTS
        path = checkpoints.save(root, saved, keep=self.config.keep_checkpoints)
        self._report({"kind": "checkpoint", "step": self.step, "path": str(path)})

    def _restore(self) -> None:
        root = self.folder / CHECKPOINTS
        found = None
        if self.world.rank == 0:
            found = checkpoints.newest(root, report=self._notice)
        step = self.world.agree(None if found is None else found.step)
        if step is None:
            return
        path = root / f"step-{step:08d}"
        found = found or checkpoints.load(path)
        model = self.forward.model
        restore_model(model, found.tensors["model"], found.state.tied, source=path)
        restore_optimizer(self.updater.optimizer, model, found.tensors["optimizer"])
        self.step, self.tokens = found.step, found.state.tokens
        self._notice(f"resumed from {path}")

    def _result(self, *, finished: bool) -> FitResult:
        events = metrics.read(self.folder / METRICS) if self.world.rank == 0 else []
        evals = [e for e in events if e["kind"] == "eval" and e["step"] == self.config.steps]
        times = [event["step_time"] for event in events if "step_time" in event]
        last = evals[-1] if evals else {}
        result = FitResult(
            folder=self.folder,
            finished=finished,
            steps=self.step,
            tokens=self.tokens,
            val_loss=last.get("loss"),
            bits_per_byte=last.get("bits_per_byte"),
            step_time_median=statistics.median(times) if times else None,
            recipe=None if self.recipe is None else self.recipe.name,
            seed=self.config.seed,
            config_hash=self.config.hash,
            data_sha256=None if self.data is None else self.data["sha256"],
        )
        agreed: FitResult = self.world.agree(result)
        return agreed

    def _event(self, event: Event) -> None:
        if self.log is not None:
            self.log.write(event)
        self._report(event)

    def _notice(self, text: str) -> None:
        self._report({"kind": "notice", "step": self.step, "text": text})

    def _report(self, event: Event) -> None:
        if self.logs is not None:
            self.logs.write(event)
        for listener in self.listeners:
            listener(event)


def _vanished(step: int) -> str:
    return (
        f"step {step}: the gradient norm is exactly zero, so the model learns nothing; check that "
        "the loss depends on the parameters, scale it up if it is tiny, or give the backward "
        "products a format of wider range (this is said once a run)"
    )
