"""Matrices that a wrong order of operations cannot survive: ties, wide ranges, odd layouts."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import torch
from torch import Tensor

from fp4lab import formats as f

Draw = Callable[[torch.Generator, int, int], Tensor]

E2M1 = torch.tensor(f.E2M1.values())
E4M3 = torch.tensor(f.E4M3.values()[1:127])


def randn(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=g)


def randint(g: torch.Generator, low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=g)


def on_grid(g: torch.Generator, rows: int, columns: int) -> Tensor:
    """E2M1 numbers and the halves between them, times E4M3 scales and a power of two."""
    x = E2M1[randint(g, 0, 16, rows, columns)] + 0.25 * randint(g, -4, 5, rows, columns)
    scale = E4M3[randint(g, 0, 126, rows, -(-columns // 16))].repeat_interleave(16, 1)
    x = x * scale[:, :columns] * 2.0 ** randint(g, -20, 20, 1).item()
    x.view(-1)[randint(g, 0, x.numel(), 1)] = 6 * 448 * 2.0 ** randint(g, -20, 20, 1).item()
    return x


def ties_in_bf16(g: torch.Generator, rows: int, columns: int) -> Tensor:
    return randn(g, rows, columns).to(torch.bfloat16).to(torch.float32)


def few_bits(g: torch.Generator, rows: int, columns: int) -> Tensor:
    """Small integers times powers of two: exact halves in every type."""
    return randint(g, -15, 16, rows, columns) * 2.0 ** randint(g, -3, 4, rows, columns)


def below_256ths(g: torch.Generator, rows: int, columns: int) -> Tensor:
    """A float32 ulp below k/256 of the smallest step, under block scales of 1."""
    x = randint(g, 1, 257, rows, columns) / 512 * (1 - 2.0**-24)
    x[:, ::16] = 6.0
    return x


def wide(g: torch.Generator, rows: int, columns: int) -> Tensor:
    return randn(g, rows, columns) * 2.0 ** randint(g, -60, 61, rows, columns)


def wide_blocks(g: torch.Generator, rows: int, columns: int) -> Tensor:
    """Block scales from E4M3's largest to below its smallest number."""
    powers = randint(g, -24, 1, rows, -(-columns // 16)).repeat_interleave(16, 1)
    return randn(g, rows, columns) * 2.0 ** powers[:, :columns]


def subnormal(g: torch.Generator, rows: int, columns: int) -> Tensor:
    return randn(g, rows, columns) * 1e-40


def huge(g: torch.Generator, rows: int, columns: int) -> Tensor:
    return (randn(g, rows, columns) * 1e38).clamp(-3.4e38, 3.4e38)


def zeros(g: torch.Generator, rows: int, columns: int) -> Tensor:
    """Mostly zeros of either sign, with whole blocks of them."""
    x = randn(g, rows, columns) * (randint(g, 0, 4, rows, 1) == 0)
    return x * randint(g, 0, 2, rows, columns)


def all_zero(g: torch.Generator, rows: int, columns: int) -> Tensor:
    return torch.zeros(rows, columns) * randint(g, -1, 2, rows, columns)


def any_bits(g: torch.Generator, rows: int, columns: int) -> Tensor:
    """All float32 bit patterns: NaN, infinities, subnormals."""
    return randint(g, -(1 << 31), 1 << 31, rows, columns).to(torch.int32).view(torch.float32)


def some_special(g: torch.Generator, rows: int, columns: int) -> Tensor:
    x = randn(g, rows, columns)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 3.4e38, 1e-45])
    at = randint(g, 0, x.numel(), 3)
    x.view(-1)[at] = special[randint(g, 0, 6, 3)]
    return x


KINDS: list[Draw] = [
    on_grid,
    ties_in_bf16,
    few_bits,
    below_256ths,
    wide,
    wide_blocks,
    subnormal,
    huge,
    zeros,
    all_zero,
    any_bits,
    some_special,
]


def as_is(x: Tensor) -> Tensor:
    return x


def transposed(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


def every_second_column(x: Tensor) -> Tensor:
    return torch.stack((x, torch.full_like(x, torch.nan)), dim=2).flatten(1)[:, ::2]


def with_offset(x: Tensor) -> Tensor:
    store = torch.full((x.numel() + 1,), torch.nan)
    return store[1:].view(x.shape).copy_(x)


def inner_part(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (3, 2, 1, 4), value=torch.nan)[1:-4, 3:-2]


LAYOUTS = [as_is, transposed, every_second_column, with_offset, inner_part]


@st.composite
def matrices(draw: st.DrawFn) -> Tensor:
    """A float32 matrix of one of the kinds, in one of the layouts, with any sides."""
    kind, layout = draw(st.sampled_from(KINDS)), draw(st.sampled_from(LAYOUTS))
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 70))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1 << 30)))
    return layout(kind(generator, rows, columns))
