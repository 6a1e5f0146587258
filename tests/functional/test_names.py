"""A format or an element type by its name is the registered one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fp4lab
from fp4lab import formats as f

X = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8_e4m3", "fp8_tensor_e5m2", "bf16"])
def test_the_name_of_a_format(name: str) -> None:
    fmt = f.get(name)
    assert fp4lab.quantize(X, name).equal(fp4lab.quantize(X, fmt))
    assert fp4lab.quantize(X, name).format is fmt
    assert torch.equal(fp4lab.fake_quantize(X, name), fp4lab.fake_quantize(X, fmt))
    assert fp4lab.error(X, name) == fp4lab.error(X, fmt)
    x = (1000 * X).requires_grad_()
    masks = []
    for given in (name, fmt):
        y = fp4lab.fake_quantize(x, given, gradient="masked")
        masks.append(torch.autograd.grad(y.sum(), x)[0])
    assert torch.equal(*masks)


def test_the_name_of_an_element_type() -> None:
    assert torch.equal(fp4lab.cast(X, "e2m1"), fp4lab.cast(X, f.E2M1))


@pytest.mark.slow
def test_names_are_traced_by_torch_compile() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        codes = fp4lab.quantize(x, "mxfp4").codes
        return codes, fp4lab.fake_quantize(x, "nvfp4"), fp4lab.cast(x, "e4m3")

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(X), function(X), strict=True):
        assert torch.equal(a, b)
