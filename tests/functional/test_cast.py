"""Casts of single numbers: overflow, NaN, and independence of torch's own casts."""

from __future__ import annotations

import pytest
import torch

import fp4lab
from fp4lab import formats as f
from fp4lab.formats import ElementType, Overflow, Ties
from tests.kernels.inputs import same

INF, NAN = torch.inf, torch.nan
EDGES = torch.tensor([448.0, 464.0, 465.0, 1000.0, INF, NAN])


@pytest.mark.parametrize(
    ("element", "overflow", "expected"),
    [
        (f.E4M3, Overflow.SATURATE, [448.0, 448.0, 448.0, 448.0, 448.0, NAN]),
        (f.E4M3, Overflow.SPECIAL, [448.0, 448.0, NAN, NAN, NAN, NAN]),
        (f.E5M2, Overflow.SATURATE, [448.0, 448.0, 448.0, 1024.0, 57344.0, NAN]),
        (f.E5M2, Overflow.SPECIAL, [448.0, 448.0, 448.0, 1024.0, INF, NAN]),
        (f.E2M1, Overflow.SPECIAL, [6.0, 6.0, 6.0, 6.0, 6.0, NAN]),
        (f.FP16_ELEMENT, Overflow.SPECIAL, [448.0, 464.0, 465.0, 1000.0, INF, NAN]),
        (f.FP16_ELEMENT, Overflow.SATURATE, [448.0, 464.0, 465.0, 1000.0, 65504.0, NAN]),
    ],
)
def test_the_overflow_policy_is_a_parameter(
    element: ElementType, overflow: Overflow, expected: list[float]
) -> None:
    """Edge case B19: beyond 464 saturate or become NaN, as asked; NaN stays NaN under both."""
    same(fp4lab.cast(EDGES, element, overflow=overflow), torch.tensor(expected))
    same(fp4lab.cast(-EDGES, element, overflow=overflow), -torch.tensor(expected))


def test_no_cast_of_torch_to_8_bits_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edge case B20: their overflow rule changed between releases.

    The same bytes come out where every conversion to them fails.
    """
    x = torch.cat([EDGES, torch.randn(58)]).view(2, 32)
    formats = [f.get(name) for name in f.names()]
    before = [fp4lab.quantize(x, fmt, ragged="pad") for fmt in formats]
    convert = torch.Tensor.to

    def refusing(tensor: torch.Tensor, *args: object, **how: object) -> torch.Tensor:
        wanted = [*args, *how.values()]
        assert not any("float8" in str(a) or "float4" in str(a) for a in wanted), wanted
        return convert(tensor, *args, **how)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(torch.Tensor, "to", refusing)
    for fmt, q in zip(formats, before, strict=True):
        again = fp4lab.quantize(x, fmt, ragged="pad")
        assert again.equal(q)
        again.dequantize()
    with pytest.raises(AssertionError, match="float8"):
        x.to(torch.float8_e4m3fn)


def test_saturating_bytes_are_those_of_clamping_first() -> None:
    """Edge case B20: whatever torch does beyond 448, clamped numbers are cast alike everywhere."""
    x = torch.cat([EDGES[:-1], torch.randn(1000) * 300])
    x = torch.cat([x, -x])
    clamped = x.clamp(-448, 448).to(torch.float8_e4m3fn).to(torch.float32)
    assert torch.equal(fp4lab.cast(x, f.E4M3), clamped)
    clamped = x.clamp(-57344, 57344).to(torch.float8_e5m2).to(torch.float32)
    assert torch.equal(fp4lab.cast(x, f.E5M2), clamped)


def test_halves_go_where_the_tie_rule_says() -> None:
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    expected = {
        Ties.EVEN: [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0],
        Ties.AWAY: [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
        Ties.ZERO: [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0],
    }
    for ties, values in expected.items():
        assert fp4lab.cast(x, f.E2M1, ties=ties).tolist() == values
        assert fp4lab.cast(-x, f.E2M1, ties=ties).tolist() == [-v for v in values]


def test_zeros_keep_their_sign_and_shapes_theirs() -> None:
    for element in (f.E2M1, f.E4M3, f.INT4, f.BF16_ELEMENT):
        x = torch.tensor([[0.0, -0.0, -1e-30]])
        assert fp4lab.cast(x, element).signbit().tolist() == [[False, True, True]]
        assert fp4lab.cast(torch.zeros(0, 3), element).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_every_dtype_is_cast_by_way_of_float32(dtype: torch.dtype) -> None:
    x = (torch.randn(100, dtype=torch.float64) * 9).to(dtype)
    result = fp4lab.cast(x, f.E3M2)
    assert result.dtype == torch.float32
    assert torch.equal(result, fp4lab.cast(x.to(torch.float32), f.E3M2))
