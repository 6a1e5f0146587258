"""RoPE against complex multiplication in float64."""

from __future__ import annotations

import math

import pytest
import torch

from fp4lab.models.rope import apply_rope, rope_tables

CPU = torch.device("cpu")


@pytest.mark.parametrize("head_dim", [2, 16, 64])
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_equals_a_complex_rotation(head_dim: int, base: float) -> None:
    length, pairs = 300, head_dim // 2
    x_BTHK = torch.randn(2, length, 3, head_dim, generator=torch.Generator().manual_seed(0))
    y_BTHK = apply_rope(x_BTHK, rope_tables(length, head_dim, base=base, device=CPU))

    turn_TP = torch.tensor(
        [
            [complex(math.cos(a), math.sin(a)) for a in row]
            for row in (
                [t * base ** (-2 * i / head_dim) for i in range(pairs)] for t in range(length)
            )
        ],
        dtype=torch.complex128,
    )
    z_BTHP = torch.complex(x_BTHK[..., :pairs].double(), x_BTHK[..., pairs:].double())
    z_BTHP = z_BTHP * turn_TP[:, None]
    expected_BTHK = torch.cat((z_BTHP.real, z_BTHP.imag), -1)

    # The frequency is off by one ulp (2**-23) and the angle by its rounding (2**-24), both relative
    # to an angle of at most t; cosine, sine and the three float32 operations add 4 * 2**-23.
    size_BTHP = x_BTHK[..., :pairs].abs() + x_BTHK[..., pairs:].abs()
    steps_T11 = 1.5 * torch.arange(length)[:, None, None] + 4
    bound_BTHP = size_BTHP * steps_T11 * 2.0**-23
    error_BTHK = (y_BTHK - expected_BTHK).abs()
    assert (error_BTHK <= torch.cat((bound_BTHP, bound_BTHP), -1)).all()
    assert not torch.equal(y_BTHK, x_BTHK)


def test_position_zero_stays_and_the_dtype_is_kept() -> None:
    x_BTHK = torch.randn(1, 4, 2, 8, dtype=torch.bfloat16)
    y_BTHK = apply_rope(x_BTHK, rope_tables(4, 8, base=10_000.0, device=CPU))
    assert y_BTHK.dtype == torch.bfloat16
    assert torch.equal(y_BTHK[:, 0], x_BTHK[:, 0])
    assert not torch.equal(y_BTHK[:, 1], x_BTHK[:, 1])
