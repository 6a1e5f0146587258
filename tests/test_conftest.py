"""The fixtures do what they say: poison, seeds, threads, and no harm to torch's own allocations."""

from __future__ import annotations

import random

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn]


def allocations(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """An uninitialized tensor from every door a kernel may use."""
    like = torch.zeros(3, 4, dtype=dtype)
    return {
        "empty": torch.empty(3, 4, dtype=dtype),
        "empty_like": torch.empty_like(like),
        "new_empty": like.new_empty(3, 4),
        "empty_strided": torch.empty_strided((3, 4), (1, 3), dtype=dtype),
        "resize_": torch.zeros(0, dtype=dtype).resize_(3, 4),
    }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uninitialized_floats_are_nan(dtype: torch.dtype) -> None:
    for door, tensor in allocations(dtype).items():
        assert tensor.isnan().all(), door


def test_uninitialized_codes_are_255() -> None:
    for door, tensor in allocations(torch.uint8).items():
        assert (tensor == 255).all(), door


def test_initialization_overwrites_the_poison() -> None:
    layer = torch.nn.Linear(8, 8)
    assert layer.weight.isfinite().all()
    for init in (torch.nn.init.orthogonal_, torch.nn.init.trunc_normal_, torch.nn.init.zeros_):
        assert init(layer.weight).isfinite().all()
    layer(torch.ones(2, 8)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.isfinite().all()


@pytest.mark.slow
def test_compilation_works_under_the_poison() -> None:
    @torch.compile(fullgraph=True)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        return out.copy_(x + x)

    assert torch.equal(doubled(torch.ones(5)), torch.full((5,), 2.0))


def test_the_seed_is_fixed(fixed_seed: int) -> None:
    drawn = (torch.rand(3), np.random.random(), random.random())
    torch.manual_seed(fixed_seed)
    assert torch.equal(drawn[0], torch.rand(3))
    assert drawn[1:] == (
        np.random.RandomState(fixed_seed).random_sample(),
        random.Random(fixed_seed).random(),
    )


def test_one_thread() -> None:
    assert torch.get_num_threads() == 1


@hypothesis.given(st.integers(0, 255))
def test_hypothesis_runs_beside_the_fixtures(value: int) -> None:
    assert hypothesis.settings().deadline is None
    assert torch.empty(1, dtype=torch.uint8).item() >= value


@pytest.mark.gpu
def test_a_gpu_test_runs_only_with_a_gpu() -> None:
    assert torch.empty(4, device="cuda").isnan().all()
