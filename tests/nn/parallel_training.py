"""What two processes of test_parallel.py run under torchrun; what they find goes into files."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import fp4lab
from fp4lab import recipes
from fp4lab.formats import Rounding
from fp4lab.recipes import LinearRecipe, Recipe

RANKS, STEPS = 2, 3
WHOLE = StateDictOptions(full_state_dict=True)
#: rounded stochastically in the forward too, so that a rank's own noise shows in its loss
STOCHASTIC = Recipe(
    name="stochastic",
    linear=LinearRecipe.from_operands(
        {
            place: operand
            if operand.format is None
            else type(operand)(format=operand.format, rounding=Rounding.STOCHASTIC_8)
            for place, operand in recipes.get("nvfp4_base").linear.operands().items()
        }
    ),
)
RECIPES = {name: recipes.get(name) for name in ("bf16", "mxfp4", "nvfp4")} | {"sr": STOCHASTIC}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(self.up(x).relu())
        return y


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(32, 32))


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(32, 32, generator=torch.Generator().manual_seed(RANKS * step + rank))


def ddp(model: nn.Sequential) -> nn.Module:
    how = "forward_sync_buffers"
    if how not in DistributedDataParallel.__init__.__annotations__:
        how = "broadcast_buffers"
    return DistributedDataParallel(model, **{how: False})


def fsdp(model: nn.Sequential) -> nn.Module:
    """A shard for each block, and the rest of the model."""
    for block in model[:2]:
        fully_shard(block)
    return fully_shard(model)


def fsdp_layers(model: nn.Sequential) -> nn.Module:
    """A shard for each layer, whose class this changes."""
    for layer in [module for module in model.modules() if isinstance(module, nn.Linear)]:
        fully_shard(layer)
    return fully_shard(model)


def checkpointed_fsdp(model: nn.Sequential) -> nn.Module:
    for i in range(2):
        model[i] = checkpoint_wrapper(model[i])
    return fsdp(model)


def compiled_ddp(model: nn.Sequential) -> nn.Module:
    wrapped: nn.Module = torch.compile(ddp(model), backend="aot_eager")
    return wrapped


def compiled_fsdp(model: nn.Sequential) -> nn.Module:
    for block in model[:2]:
        block.compile(backend="aot_eager")
    return fsdp(model)


WRAPS: dict[str, Callable[[nn.Sequential], nn.Module]] = {
    "ddp": ddp,
    "fsdp": fsdp,
    "fsdp of layers": fsdp_layers,
    "fsdp with checkpointing": checkpointed_fsdp,
    "compiled ddp": compiled_ddp,
    "compiled fsdp": compiled_fsdp,
}
#: how the model is wrapped, its recipe, and whether it is converted before that
CASES = [
    *((wrap, recipe, True) for wrap in ("ddp", "fsdp", "fsdp of layers") for recipe in RECIPES),
    *((wrap, recipe, False) for wrap in ("ddp", "fsdp") for recipe in RECIPES),
    *((wrap, "sr", True) for wrap in list(WRAPS)[3:]),
]


def train(case: tuple[str, str, bool], rank: int) -> dict[str, Any]:
    """Losses, weights, and outputs with the recipe off and another, as this rank sees them."""
    wrap, recipe, before = case
    model = build()
    if before:
        fp4lab.convert(model, RECIPES[recipe])
    wrapped = WRAPS[wrap](model)
    if not before:
        fp4lab.convert(wrapped, RECIPES[recipe])
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        fp4lab.set_step(wrapped, step, rank)
        optimizer.zero_grad()
        loss = wrapped(batch(step, rank)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found: dict[str, Any] = {"losses": losses}
    with torch.no_grad():
        with fp4lab.disabled(wrapped):
            found["disabled"] = wrapped(batch(0, rank))
        fp4lab.set_recipe(wrapped, "mxfp8")
        found["mxfp8"] = wrapped(batch(0, rank))
        found["weights"] = {
            name: value.clone()
            for name, value in get_model_state_dict(wrapped, options=WHOLE).items()
        }
        set_model_state_dict(wrapped, build().state_dict(), options=WHOLE)
        found["loaded"] = wrapped(batch(0, rank))
    return found


def without_steps(wrap: str) -> list[str]:
    """What is warned of in an accumulation of two microbatches, then in the next step."""
    model = build()
    fp4lab.convert(model, STOCHASTIC)
    wrapped = WRAPS[wrap](model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    said = []
    for step in range(2):
        with told() as messages:
            for _ in range(2):
                wrapped(batch(step, 0)).square().mean().backward()
            optimizer.step()
        said.append("; ".join(messages))
    return said


@contextmanager
def told() -> Iterator[list[str]]:
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield messages
    messages += [str(one.message) for one in caught]


def turned_back() -> str:
    """Why layers that were sharded by themselves are not turned back."""
    model = build()
    fp4lab.convert(model, "nvfp4")
    try:
        fp4lab.unconvert(fsdp_layers(model))
    except fp4lab.InputError as error:
        return str(error)
    return ""


def late_conversion() -> str:
    """What a conversion says of layers that were sharded by themselves before."""
    model = build()
    fully_shard(model[2])
    return str(fp4lab.convert(fully_shard(model), "nvfp4"))


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found = {
        "cases": {case: train(case, rank) for case in CASES},
        "without steps": {wrap: without_steps(wrap) for wrap in ("ddp", *list(WRAPS)[1:4])},
        "turned back": turned_back(),
        "late conversion": late_conversion(),
    }
    torch.save(found, folder / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
