"""Every bf16 number through the quantizers that training uses: the C version, and the reference.

`test_minifloat_*.py` does the same for the rounding routines alone.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fp4lab
from fp4lab import formats as f
from fp4lab.formats import BlockFormat, BlockScale, ElementType, Overflow, Rounding, ScaleRule, Ties
from fp4lab.kernels import backends
from fp4lab.kernels.minifloat.reference import decode
from fp4lab.kernels.philox.reference import random_bits
from tests.kernels import block_oracle, oracle
from tests.kernels.inputs import every_bf16, same

BACKENDS = ("native", "reference")
ELEMENTS = (
    f.E2M1, f.E3M2, f.E2M3, f.E4M3, f.E5M2, f.INT4, f.E1M2, f.FP16_ELEMENT,
)  # fmt: skip


def blocks_with_scale_one(element: ElementType) -> tuple[Tensor, BlockFormat]:
    """All finite bf16 numbers up to the largest, 31 a block beside one that makes its scale 1."""
    x = every_bf16()
    x = x[x.isfinite()].clamp(-element.max_value, element.max_value)
    x = torch.nn.functional.pad(x, (0, -len(x) % 31)).view(-1, 31)
    fmt = BlockFormat(
        name="scale 1",
        element=element,
        block=(1, 32),
        scale=f.E8M0,
        scale_rule=ScaleRule.ROUND_UP,
        block_scale=BlockScale.POWER_OF_TWO,
        keep_negative_zero=True,
    )
    return torch.cat([torch.full((len(x), 1), element.max_value), x], dim=1), fmt


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("element", ELEMENTS, ids=lambda e: e.name)
def test_every_bf16_to_nearest(element: ElementType, backend: str) -> None:
    x, fmt = blocks_with_scale_one(element)
    with backends.backend(backend):
        q = fp4lab.fake_quantize(x, fmt)
    same(q, oracle.nearest(x.double().numpy(), element, Ties.EVEN, Overflow.SATURATE))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", [Rounding.STOCHASTIC_8, Rounding.STOCHASTIC_32])
@pytest.mark.parametrize("element", ELEMENTS[:7], ids=lambda e: e.name)
def test_every_bf16_at_random(element: ElementType, mode: Rounding, backend: str) -> None:
    """Tiny numbers meet every byte hundreds of times: none of 255 may carry them up."""
    x, fmt = blocks_with_scale_one(element)
    for step in range(2):
        noise = fp4lab.noise_state(0, step=step)
        random = random_bits(*x.shape, noise, stream=0, bits=mode.noise_bits)
        with backends.backend(backend):
            q = fp4lab.fake_quantize(x, fmt, rounding=mode, noise=noise)
        integers = random.to(torch.int64).numpy()
        expected = oracle.stochastic(
            x.double().numpy(), element, integers, mode.noise_bits, Overflow.SATURATE
        )
        same(q, expected)


@pytest.mark.slow
@pytest.mark.parametrize("rule", list(ScaleRule))
@pytest.mark.parametrize("element", ELEMENTS[:5], ids=lambda e: e.name)
def test_every_bf16_as_the_amax_of_a_power_of_two_scale(
    element: ElementType, rule: ScaleRule
) -> None:
    """E8M0, the one element type that no rounding routine makes."""
    x = every_bf16()
    x = x[(x > 0) & x.isfinite()].view(-1, 1)
    _, fmt = blocks_with_scale_one(element)
    fmt = fmt.replace(block=(1, 1), scale_rule=rule)
    expected = block_oracle.quantize(x.numpy(), fmt)
    for backend in BACKENDS:
        with backends.backend(backend):
            q = fp4lab.quantize(x, fmt)
        same(decode(q.scales, f.E8M0), expected.scales)
        same(q.dequantize(), expected.dequantized)
