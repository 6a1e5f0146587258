"""The rows of products and of a training step, against torch's own in the same run.

"matmul" is `F.linear` in bfloat16, or in float32 on a CPU without bfloat16 instructions; the
row says which. Both sides get the same tensors in the same dtype, layers that of the matmul. A
training step is one of a float32 model, which the target speaks of, and one under autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

import fp4lab
from fp4lab import formats, recipes
from fp4lab.bench.measure import Run
from fp4lab.bench.results import Target
from fp4lab.bench.rows import Claim, Job, LeftOutError, Row, Setting, dtype_name
from fp4lab.functional.products import Accumulate
from fp4lab.kernels.matmul.dispatch import has_bf16
from fp4lab.models import GPT, GPTConfig, get_preset
from fp4lab.optim import build_optimizer
from fp4lab.tensor import QuantizedTensor

GROUP = "products"
RECIPE = "nvfp4"
EXPERTS = 8
Activations: TypeAlias = Literal["same", "int8"]


def rows(*, gpu: bool = False) -> list[Row]:
    """Layers, a training step, packed weights and grouped products."""
    large = partial(_linear_job, divide=(2, 1, 1))
    small = partial(_linear_job, divide=(8, 4, 4), backward=True)
    both = partial(large, backward=True)
    if gpu:
        return [
            Row(group=GROUP, name="linear forward", job=large),
            Row(group=GROUP, name="linear forward+backward", job=both, target=Target(1.25)),
        ]
    faster: dict[str, tuple[Activations, float]] = {"bf16": ("same", 3.5), "int8": ("int8", 6.0)}
    autocast = partial(_gpt_job, autocast=True)
    return [
        Row(group=GROUP, name="linear forward", job=large, target=Target(1.1)),
        Row(group=GROUP, name="linear forward+backward", job=both, target=Target(1.2)),
        Row(group=GROUP, name="small linear forward+backward", job=small, target=Target(1.6)),
        Row(group=GROUP, name="gpt step float32 model", job=_gpt_job, target=Target(1.35)),
        Row(group=GROUP, name="gpt step bfloat16", job=autocast),
        *(
            Row(
                group=GROUP,
                name=f"packed matvec {kind}",
                job=partial(_matvec_job, activations=activations),
                target=Target(limit, "at least"),
            )
            for kind, (activations, limit) in faster.items()
        ),
        Row(
            group=GROUP,
            name="packed matvec error",
            job=_matvec_error,
            target=Target(1e-6),
        ),
        Row(group=GROUP, name="grouped matmul", job=_grouped_job),
    ]


def _linear_job(
    setting: Setting, row: Row, *, divide: tuple[int, int, int], backward: bool = False
) -> Job:
    """A layer of M x K by N x K, the size divided by three numbers; all GEMMs with `backward`."""
    tokens, outputs, inputs = (setting.size // by for by in divide)
    dtype = setting.matmul_dtype
    x_MK = setting.matrix(tokens, inputs, dtype=dtype).requires_grad_(backward)
    dy_MN = setting.matrix(tokens, outputs, dtype=dtype, seed=1)
    layer = fp4lab.nn.Linear(
        *(inputs, outputs, False),
        recipe=recipes.get(RECIPE).linear,
        device=setting.device,
        dtype=dtype,
    )
    w_NK = layer.weight.detach().clone().requires_grad_(backward)
    runs = {
        "ours": _pass(layer, x_MK, layer.weight, dy_MN if backward else None),
        "matmul": _pass(lambda x: F.linear(x, w_NK), x_MK, w_NK, dy_MN if backward else None),
    }
    flops = 2 * tokens * outputs * inputs * (3 if backward else 1)
    claim = Claim(
        name=f"{row.name} {tokens}x{outputs}x{inputs}",
        of="ours",
        to="matmul",
        against=f"{dtype_name(dtype)} matmul",
        target=row.target,
        flops=flops,
        roof=("matmul", 0),
    )
    return Job(runs=runs, claims=[claim])


def _pass(layer: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor, dy: Tensor | None) -> Run:
    """A forward pass, with the backward pass of `dy` where there is one."""

    def forward() -> Tensor:
        with torch.no_grad():
            return layer(x)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(layer(x), (x, weight), dy)

    return forward if dy is None else both


def _gpt_job(setting: Setting, row: Row, *, autocast: bool = False) -> Job:
    """Whole updates of one small GPT under the recipe, the `bf16` recipe, and plain torch."""
    if autocast and setting.matmul_dtype != torch.bfloat16:
        raise LeftOutError("this CPU has no bfloat16 instructions")
    shape = _gpt_shape(setting.size)
    length = shape.context_length
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(shape.vocab_size, (1, length + 1), generator=generator)
    models = {"ours": _gpt(shape, RECIPE), "bf16": _gpt(shape, "bf16"), "torch": _gpt(shape, None)}
    claim = Claim(
        name=f"{row.name} d={shape.dim}, {shape.num_blocks} blocks, {length} tokens",
        of="ours",
        to="bf16",
        against="recipe bf16",
        target=row.target,
        flops=models["torch"].flops_per_token(length) * length,
        roof=("torch", 0),
        note="a float32 model under autocast" if autocast else "",
    )
    plain = replace(claim, name=f"{claim.name}, to plain torch", to="torch", against="torch")
    plain = replace(plain, target=None, roof=None)
    runs = {
        name: _update(model.to(setting.device), tokens.to(setting.device), autocast=autocast)
        for name, model in models.items()
    }
    return Job(runs=runs, claims=[claim, plain])


def _gpt_shape(size: int) -> GPTConfig:
    """`gpt-small` (d=512, 8 blocks, 512 tokens) for the stated size, else scaled with it."""
    width = max(size // 8, 16)
    heads = max(width // 64, 1)
    return replace(
        get_preset("gpt-small"),
        dim=width,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=min(width, 64),
        hidden_dim=-(-width * 11 // 256) * 64,
        context_length=width,
    )


def _gpt(shape: GPTConfig, recipe: str | None) -> GPT:
    model = GPT(shape)
    if recipe is not None:
        fp4lab.convert(model, recipes.get(recipe))
        # the noise of one step is as fast as that of another
        fp4lab.set_step(model, 0)
    return model


def _update(model: GPT, tokens: Tensor, *, autocast: bool) -> Run:
    """One step of training: forward (under autocast to bfloat16 if so), backward, AdamW."""
    optimizer = build_optimizer(model, learning_rate=1e-4)
    cast = partial(torch.autocast, tokens.device.type, torch.bfloat16) if autocast else nullcontext

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        with cast():
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return update


class _Packed(NamedTuple):
    """Weights four times as high as they are wide, quantized, and one vector."""

    q: QuantizedTensor
    w_NK: Tensor
    x_1K: Tensor


def _packed(setting: Setting) -> _Packed:
    w_NK = setting.matrix(4 * setting.size, setting.size)
    return _Packed(fp4lab.quantize(w_NK, formats.NVFP4), w_NK, setting.matrix(1, setting.size))


def _matvec_job(setting: Setting, row: Row, *, activations: Activations) -> Job:
    """Batch 1 times packed weights, against `F.linear` with bfloat16 weights."""
    q, w_NK, x_1K = _packed(setting)
    w16_NK, x16_1K = w_NK.bfloat16(), x_1K.bfloat16()
    runs: dict[str, Run] = {
        "ours": lambda: fp4lab.packed_linear(x16_1K, q, activations=activations),
        "matmul": lambda: F.linear(x16_1K, w16_NK),
    }
    claim = Claim(
        name=f"{row.name} {4 * setting.size}x{setting.size}",
        of="ours",
        to="matmul",
        against="bfloat16 F.linear's speed",
        target=row.target,
        faster=True,
        moved=q.nbytes,
        note="" if has_bf16(torch.device("cpu")) else "this CPU has no bfloat16 instructions",
    )
    return Job(runs=runs, claims=[claim])


def _matvec_error(setting: Setting, row: Row) -> Job:
    """The error of the product of bfloat16 activations, relative to float64, norm by norm.

    They come as float32, so that the result is not rounded to bfloat16 at the end.
    """
    q, _, x_1K = _packed(setting)
    x_1K = x_1K.bfloat16().float()
    exact = x_1K.double() @ q.dequantize(torch.float64).t()
    error = (fp4lab.packed_linear(x_1K, q).double() - exact).norm() / exact.norm()
    return Job(lines=[row.line(error.item(), unit="", against="relative to float64")])


def _grouped_job(setting: Setting, row: Row) -> Job:
    """Eight experts, one of them without a token, against as many calls of `F.linear`."""
    side = setting.size // 4
    counts = [side // EXPERTS] * (EXPERTS - 1) + [0]
    x_MK = setting.matrix(sum(counts), side)
    experts = [setting.matrix(side, side, seed=seed) for seed in range(EXPERTS)]
    q_MK = fp4lab.quantize(x_MK, formats.NVFP4)
    q_experts = [fp4lab.quantize(w_NK, formats.NVFP4) for w_NK in experts]
    dtype = setting.matmul_dtype
    accumulate: Accumulate = "fast" if dtype == torch.bfloat16 else "exact"
    grouped = partial(fp4lab.grouped_scaled_matmul, accumulate=accumulate, dtype=dtype)
    parts = [part.to(dtype) for part in x_MK.split(counts)]
    weights = [w_NK.to(dtype) for w_NK in experts]
    runs: dict[str, Run] = {
        "ours": lambda: grouped(q_MK, q_experts, counts),
        "matmul": lambda: [F.linear(x, w) for x, w in zip(parts, weights, strict=True)],
    }
    claim = Claim(
        name=f"{row.name}, {EXPERTS} experts of {side}x{side}",
        of="ours",
        to="matmul",
        against=f"{dtype_name(dtype)} matmuls",
        target=row.target,
        flops=2 * sum(counts) * side * side,
        roof=("matmul", 0),
    )
    return Job(runs=runs, claims=[claim])
