"""Numbers and types that the tests of the kernels share."""

from __future__ import annotations

from typing import Any

import gfloat.formats
import hypothesis.strategies as st
import numpy as np
import torch
from torch import Tensor

from fp4lab.formats import ElementType, Specials

#: types that a user could declare
USER_TYPES = [
    ElementType("e3m0", 3, 0, 3),
    ElementType("e3m4", 3, 4, 3, Specials.IEEE),
    ElementType("e4m3_ieee", 4, 3, 7, Specials.IEEE),
    ElementType("e5m2_nan", 5, 2, 15, Specials.NAN),
    ElementType("e4m7", 4, 7, 7),
]
GFLOAT = {
    "e2m1": gfloat.formats.format_info_ocp_e2m1,
    "e2m3": gfloat.formats.format_info_ocp_e2m3,
    "e3m2": gfloat.formats.format_info_ocp_e3m2,
    "e4m3": gfloat.formats.format_info_ocp_e4m3,
    "e5m2": gfloat.formats.format_info_ocp_e5m2,
}


def every_bf16() -> Tensor:
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16)
    return bits.view(torch.bfloat16).to(torch.float32)


def same(a: Tensor, b: Tensor | np.ndarray[Any, Any]) -> None:
    """Equal bits, but for the sign and payload of NaN."""
    b = torch.as_tensor(b).to(torch.float32)
    different = (a.view(torch.int32) != b.view(torch.int32)) & ~(a.isnan() & b.isnan())
    assert not different.any(), (a[different][:5], b[different][:5])


def halves_and_neighbours(dtype: torch.dtype) -> Tensor:
    """All numbers of a 16-bit type, the halves between them, and their float32 neighbours."""
    bits = torch.arange(1 << 15, dtype=torch.int16)
    values = bits.view(dtype).to(torch.float32)
    values = values[values.isfinite()]
    halves = (values[1:].double() + values[:-1].double()).div(2).to(torch.float32)
    exact = torch.cat([values, halves, torch.tensor([65519.996, 65520.0, 3.3961776e38, 3.4e38])])
    up, down = (exact.nextafter(torch.tensor(end)) for end in (torch.inf, -torch.inf))
    x = torch.cat([exact, up, down, torch.tensor([torch.inf, torch.nan])])
    return torch.cat([x, -x])


@st.composite
def element_types(draw: st.DrawFn) -> ElementType:
    exponent_bits = draw(st.integers(1, 7))
    mantissa_bits = draw(st.integers(0, min(10, 15 - exponent_bits)))
    specials = draw(st.sampled_from(Specials))
    if specials == Specials.IEEE and (mantissa_bits == 0 or exponent_bits == 1):
        specials = Specials.NONE
    if specials == Specials.NAN and mantissa_bits == 0 and exponent_bits == 1:
        specials = Specials.NONE
    low = 1 - 126 + mantissa_bits
    high = 103 + mantissa_bits - (1 << exponent_bits) + 1
    bias = draw(st.integers(max(-high, -60), min(-low, 60)))
    return ElementType("drawn", exponent_bits, mantissa_bits, bias, specials)


FLOAT32 = st.integers(0, (1 << 32) - 1).map(lambda bits: np.uint32(bits).view(np.float32))
