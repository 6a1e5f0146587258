"""Block formats as data: sizes, the table of names, and a new format in three lines."""

from __future__ import annotations

import pytest
import torch

import fp4lab
from fp4lab import formats as f
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat

#: bits a value in a 4096 x 4096 tensor
SIZES = {
    "nvfp4": 4.5,
    "nvfp4_16x16": 4 + 8 / 256,
    "mxfp4": 4.25,
    "mxfp6_e2m3": 6.25,
    "mxfp8_e4m3": 8.25,
    "fp8_1x128_e4m3": 8.25,
    "fp8_row_e4m3": 8 + 32 / 4096,
    "fp8_tensor_e5m2": 8.0,
    "bf16": 16.0,
}


@pytest.mark.parametrize("name", SIZES)
def test_bits_a_value(name: str) -> None:
    assert f.get(name).bits_per_value() == pytest.approx(SIZES[name], abs=1e-5)


def test_scale_rules_of_mx_have_names() -> None:
    for rule in (f.ScaleRule.FLOOR, f.ScaleRule.CEIL, f.ScaleRule.EVEN, f.ScaleRule.NEAREST):
        named = f.get(f"mxfp4_{rule.name.lower()}")
        assert named.replace(name="mxfp4", scale_rule=f.ScaleRule.ROUND_UP) == f.MXFP4
        assert named.scale_rule == rule


def test_names_are_sorted_and_known() -> None:
    assert f.names() == sorted(f.names())
    assert all(f.get(name).name == name for name in f.names())
    assert f.get("nvfp4") is f.NVFP4


def test_a_name_belongs_to_one_format() -> None:
    assert f.register(f.NVFP4) is f.NVFP4
    with pytest.raises(InputError, match="name='nvfp4' is taken"):
        f.register(f.NVFP4.replace(scale_cap=256.0))
    with pytest.raises(InputError, match="did you mean 'mxfp8_e4m3'"):
        f.get("mxfp8_e4m4")


@pytest.mark.parametrize("name", ["nvfp4-rht", "a+b", "a.b", "a,b", "", "4bit", "ä"])
def test_a_name_can_begin_that_of_a_recipe(name: str) -> None:
    with pytest.raises(InputError, match=r"may hold letters, digits and _; change it by fmt"):
        f.register(f.NVFP4.replace(name=name, block=(1, 32)))
    assert name not in f.names()


def test_a_new_format_works_everywhere(tmp_path: object) -> None:
    element = f.ElementType("e3m0", 3, 0, 3)
    mine = BlockFormat(
        name="mine", element=element, block=(1, 8), scale=f.UE5M3, level=f.Level.TENSOR
    )
    x = torch.randn(16, 24)
    q = fp4lab.quantize(x, mine)
    assert torch.equal(fp4lab.fake_quantize(x, mine), q.dequantize())
    assert fp4lab.error(x, mine).sqnr_db > 10
    fp4lab.save({"x": q}, f"{tmp_path}/x")
    assert q.equal(fp4lab.load(f"{tmp_path}/x")["x"])  # type: ignore[arg-type]
    product = fp4lab.scaled_matmul(q, q)
    exact = q.dequantize(torch.float64) @ q.dequantize(torch.float64).t()
    assert torch.allclose(product.double(), exact, rtol=1e-5, atol=1e-5)
    layer = fp4lab.nn.Linear(24, 8, recipe=fp4lab.recipes.LinearRecipe.uniform(mine))
    layer(x).sum().backward()
    assert layer.weight.grad is not None


def test_formats_are_values() -> None:
    again = f.NVFP4.replace()
    assert again == f.NVFP4
    assert hash(again) == hash(f.NVFP4)
    assert f.NVFP4.replace(scale_floor=2.0**-6) != again
    with pytest.raises(AttributeError):
        f.NVFP4.name = "other"  # type: ignore[misc]
