"""One run as frozen data: nested dataclasses with defaults, their hash and their differences.

`FitConfig` is what the loop needs for any task; `RunConfig` adds a language model and its text, so
that the command line and a TOML file describe a whole run. `train/toml.py` reads and writes them.

Fields marked operational (how long, how often saved, what is shown) cannot change a weight: they
are not part of the hash, and a run may be resumed with other values of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from tyro.conf import arg

from fp4lab.errors import InputError, unknown
from fp4lab.optim import Schedule
from fp4lab.optim.schedule import SHAPES, Shape
from fp4lab.specs.options import Unset

OPERATIONAL = {"operational": True}
DTYPES = ("float32", "bfloat16")
RAGGED = ("error", "pad")
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW and its learning rate."""

    learning_rate: Annotated[float, arg(aliases=["--learning-rate"])] = 3e-3
    """Peak learning rate."""
    schedule: Shape = "cosine"
    """How the rate falls: "wsd" (warm-up, stable, linear decay), "cosine" or "constant"."""
    warmup_fraction: float = 0.025
    """Part of all steps over which the rate grows linearly to its peak."""
    decay_fraction: float = 0.2
    """Part of all steps over which "wsd" decays."""
    final_fraction: float = 0.0
    """Part of the peak rate left after the last update."""
    weight_decay: float = 0.1
    """Decoupled weight decay, on matrices only."""
    beta1: float = 0.9
    """Decay of the mean of the gradient."""
    beta2: float = 0.95
    """Decay of the mean of its square."""
    eps: float = 1e-8
    """Added to the root of the mean square."""
    clip_norm: float = 1.0
    """Largest gradient norm, over all parameters together; 0 does not clip."""

    def __post_init__(self) -> None:
        _one_of("optim.schedule", self.schedule, SHAPES)
        _positive("optim.learning_rate", self.learning_rate)
        _positive("optim.eps", self.eps)
        _at_least("optim.weight_decay", self.weight_decay, 0)
        for name in ("warmup_fraction", "decay_fraction", "final_fraction"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise InputError(f"optim.{name}={value} is not a fraction; give one in [0, 1]")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise InputError(f"optim.{name}={value} would never forget; give one in [0, 1)")
        if self.schedule == "wsd" and self.warmup_fraction + self.decay_fraction > 1.0:
            raise InputError(
                f"optim.warmup_fraction={self.warmup_fraction} and "
                f"optim.decay_fraction={self.decay_fraction} add up to more than the whole run; "
                "make one of them smaller"
            )
        _at_least("optim.clip_norm", self.clip_norm, 0)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A preset of `fp4lab.models` and the fields in which this model departs from it."""

    preset: Annotated[str, arg(aliases=["--model"])] = "gpt-tiny"
    """Name of the preset."""
    num_blocks: Unset[int] = None
    """Number of transformer blocks."""
    dim: Unset[int] = None
    """Width of the residual stream."""
    num_heads: Unset[int] = None
    """Number of query heads."""
    num_kv_heads: Unset[int] = None
    """Number of key and value heads."""
    head_dim: Unset[int] = None
    """Width of one head."""
    vocab_size: Unset[int] = None
    """Tokens the model knows; by default those of the shards' tokenizer, else the preset's."""
    hidden_dim: Unset[int] = None
    """Width inside the MLP."""
    activation: Unset[Literal["swiglu", "relu2"]] = None
    """Activation of the MLP."""
    context_length: Unset[int] = None
    """Longest sequence the model takes."""
    tied_head: Unset[bool] = None
    """Whether the output head is the embedding."""
    init_std: Unset[float] = None
    """Standard deviation of the initial weights."""

    def overrides(self) -> dict[str, Any]:
        """The fields that are set, apart from the preset."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: v for k, v in values.items() if k != "preset" and v is not None}


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The text, how it is cut and what is held out."""

    source: Annotated[str, arg(aliases=["--data"])] = "stdlib"
    """"stdlib", Python's own standard library, or the path of a text file, of a folder of them or
    of shards that `fp4lab data prepare` made."""
    sequence_length: int = 64
    """Tokens in one training window."""
    validation_fraction: float = 0.05
    """Part of the text held out, never trained on; shards have their own."""
    eval_windows: Unset[int] = None
    """Held-out windows in one evaluation, spread evenly; None takes about 49,000 tokens."""

    def __post_init__(self) -> None:
        if not self.source.strip():
            # As a path it would be the whole current folder.
            raise InputError(
                f"data.source={self.source!r} names nothing; give 'stdlib' or a folder of text"
            )
        _at_least("data.sequence_length", self.sequence_length, 1)
        if self.eval_windows is not None:
            _at_least("data.eval_windows", self.eval_windows, 1)
        if not 0.0 < self.validation_fraction <= 0.5:
            raise InputError(
                f"data.validation_fraction={self.validation_fraction} is outside (0, 0.5]; "
                "give a part such as 0.05"
            )


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """What the training loop needs, whatever is trained."""

    steps: int = 2050
    """Updates of the weights in the whole run."""
    microbatches: int = 1
    """Microbatches whose gradients make one update, over all processes together."""
    seed: int = 0
    """Seed of the initial weights and of the rounding noise."""
    eval_every: int = 200
    """Updates between evaluations; there is always one at the end."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; "auto" takes a GPU if there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """"bfloat16" runs the model under autocast; the weights stay in float32."""
    ragged: Literal["error", "pad"] = "error"
    """What to do where a dimension does not fit a format's blocks; "pad" completes with zeros."""
    threads: int = 1
    """Threads of one process on the CPU; more pay for a large model while other cores are idle."""
    compile: bool = False
    """Whether to compile the model with torch.compile."""
    log_every: int = 1
    """Updates between lines in metrics.jsonl."""
    checkpoint_every: int = field(default=500, metadata=OPERATIONAL)
    """Updates between checkpoints; there is always one at the end."""
    keep_checkpoints: int = field(default=2, metadata=OPERATIONAL)
    """Newest checkpoints that are kept."""
    time_limit: Unset[float] = field(default=None, metadata=OPERATIONAL)
    """Seconds after which the run saves a checkpoint and stops, to be resumed later."""
    peak_flops: Unset[float] = field(default=None, metadata=OPERATIONAL)
    """Peak FLOP/s of one device, for the model FLOP/s utilization; None uses a table of GPUs."""
    tensorboard: bool = field(default=False, metadata=OPERATIONAL)
    """Whether to write TensorBoard event files too, into the run's folder."""
    wandb: Unset[str] = field(default=None, metadata=OPERATIONAL)
    """Weights & Biases project to log to, too; "fp4lab" if no name follows."""
    wandb_group: Unset[str] = field(default=None, metadata=OPERATIONAL)
    """Group of the run there; a comparison groups its runs under the name of its folder."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer and learning rate."""

    def __post_init__(self) -> None:
        _one_of("device", self.device, DEVICES)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("ragged", self.ragged, RAGGED)
        for name in ("steps", "microbatches", "eval_every", "log_every", "checkpoint_every",
                     "keep_checkpoints", "threads"):  # fmt: skip
            _at_least(name, getattr(self, name), 1)
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed={self.seed} is not a 63-bit number; give one in [0, 2^63)")
        for name in ("time_limit", "peak_flops"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))

    def schedule(self) -> Schedule:
        """The learning-rate schedule of this run."""
        warmup = round(self.optim.warmup_fraction * self.steps)
        decay = round(self.optim.decay_fraction * self.steps)
        return Schedule(
            self.optim.schedule,
            peak=self.optim.learning_rate,
            steps=self.steps,
            warmup_steps=warmup,
            # Rounding both up may exceed the run by one step.
            decay_steps=min(decay, self.steps - warmup),
            final_fraction=self.optim.final_fraction,
        )

    @property
    def hash(self) -> str:
        """SHA-256, in hex, of the canonical JSON of all that can change a bit and is no default.

        Fields at their defaults are left out so that a new field keeps old hashes valid.
        """
        default = identity(type(self)())
        changed = {key: value for key, value in identity(self).items() if value != default[key]}
        text = json.dumps(changed, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class RunConfig(FitConfig):
    """A whole run: a language model, its text, a precision recipe and how to train.

    >>> RunConfig(steps=10).hash == RunConfig(steps=10, time_limit=60.0).hash
    True
    """

    recipe: str = "bf16"
    """Precision recipe: a name, or the path of a TOML file."""
    batch_size: int = 16
    """Sequences in one microbatch."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The model."""
    data: DataConfig = field(default_factory=DataConfig)
    """The text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least("batch_size", self.batch_size, 1)


def identity(config: Any, *, prefix: str = "") -> dict[str, Any]:
    """The fields of a nested config that are part of its hash, under dotted names."""
    flat: dict[str, Any] = {}
    hints = typing.get_type_hints(type(config))
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if dataclasses.is_dataclass(value):
            flat |= identity(value, prefix=f"{prefix}{entry.name}.")
        elif not entry.metadata.get("operational"):
            # 1 and 1.0 are the same rate and must have the same hash.
            flat[prefix + entry.name] = float(value) if hints[entry.name] is float else value
    return flat


def check_threads(threads: int) -> None:
    """InputError for more threads than cores: OpenMP ends the process at a few thousand.

    Asked where training begins, for the config of a run is read on smaller machines, too.
    """
    if threads > (cores := os.cpu_count() or 1):
        raise InputError(f"threads={threads} is above the {cores} cores here; give {cores} or less")


def differences(old: FitConfig, new: FitConfig) -> list[str]:
    """What differs between two configs in fields of the hash: "steps (100, now 200)" and so on."""
    before, after = identity(old), identity(new)
    return [
        f"{key} ({before.get(key)!r}, now {after.get(key)!r})"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise unknown(name, value, known)


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{name}={value} is not a positive number; give one above 0")


def _at_least(name: str, value: float, low: int) -> None:
    if not (value >= low and math.isfinite(value)):
        raise InputError(f"{name}={value} is below {low}; give {low} or more")
