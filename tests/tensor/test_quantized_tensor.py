"""QuantizedTensor: shapes, size, equality, copies, repr."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fp4lab
from fp4lab import QuantizedTensor
from fp4lab import formats as f
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat
from fp4lab.kernels import ops
from fp4lab.kernels.hadamard.reference import hadamard

FORMATS = [f.get(name) for name in f.names()]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_the_shape_is_the_logical_one(fmt: BlockFormat) -> None:
    """Edge case B36: (4, 16) in 4 bits is stored as (4, 8) and still has the shape (4, 16)."""
    x = torch.randn(3, 4, 16)
    q = fp4lab.quantize(x, fmt, ragged="pad")
    assert q.shape == x.shape == q.dequantize().shape
    assert q.matrix_shape == (12, 16)
    assert q.codes.shape == (12, 8 if fmt.element.bits == 4 else 16)
    turned = fp4lab.quantize(x, fmt, axis=-2, ragged="pad")
    assert turned.shape == x.shape
    assert turned.matrix_shape == (16, 12)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_the_size_is_that_of_the_format(fmt: BlockFormat) -> None:
    q = fp4lab.quantize(torch.randn(256, 256), fmt)
    expected = fmt.bits_per_value(256, 256)
    # 6-bit codes take a byte
    expected += {6: 2}.get(fmt.element.bits, 0)
    assert q.bits_per_value == pytest.approx(expected)
    assert q.nbytes == sum(part.nbytes for part in q.parts())


def test_equality_is_of_bits_format_and_shape() -> None:
    x = torch.randn(32, 32)
    q = fp4lab.quantize(x, f.NVFP4)
    assert q.equal(fp4lab.quantize(x, f.NVFP4))
    assert not q.equal(fp4lab.quantize(x, f.NVFP4, axis=-2))
    assert not q.equal(fp4lab.quantize(x.view(2, 16, 32), f.NVFP4))
    assert not q.equal(fp4lab.quantize(x, f.NVFP4_4OVER6))
    assert not q.equal(fp4lab.quantize(-x, f.NVFP4))
    nan = fp4lab.quantize(torch.full((1, 16), torch.nan), f.NVFP4)
    assert nan.equal(fp4lab.quantize(torch.full((1, 16), torch.nan), f.NVFP4))


def test_copies_hold_the_same_bits_in_other_memory() -> None:
    """Edge case B59: deepcopy and pickle of quantized tensors."""
    q = fp4lab.quantize(torch.randn(32, 64), f.NVFP4, axis=-2)
    for other in (copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        assert isinstance(other, QuantizedTensor)
        assert q.equal(other)
        assert other.codes.data_ptr() != q.codes.data_ptr()
        assert torch.equal(other.dequantize(), q.dequantize())
    assert q.to("cpu").equal(q)
    assert q.to("meta").shape == q.shape


def test_parts_that_do_not_belong_together_are_refused() -> None:
    """C reads what it is told is there: a byte that is taken for a float is foreign memory."""
    q = fp4lab.quantize(torch.randn(8, 64), f.NVFP4)
    scales = [
        *(q.scales.view(torch.float8_e4m3fn), q.scales.view(torch.int8), q.scales.float()),
        *(q.scales.half(), q.scales.double(), q.scales.long(), q.scales.bool(), q.scales[:, :2]),
    ]
    amax = [
        *(q.amax.double(), q.amax.half(), q.amax.long(), q.amax.bool(), q.amax[:0]),
        q.amax.repeat(8),
    ]
    wrong: dict[str, list[Any]] = {
        "codes": [q.codes[:4], q.codes.bool(), q.codes.float(), q.codes[0, 0], None, [1]],
        "scales": [*scales, None, q.scales.to("meta")],
        "tensor_scale": [None],
        "shape": [torch.Size(()), (8, 64), [8, 64]],
        "format": ["nvfp4", None],
        "axis": [0, 1],
    }
    for field, values in wrong.items():
        for value in values:
            with pytest.raises(InputError, match=field):
                dataclasses.replace(q, **{field: value})
    for value in [*amax, q.amax.to("meta")]:
        with pytest.raises(InputError, match="amax"):
            dataclasses.replace(q, tensor_scale=value)
    for size in ((2, 64), (8, 62)):
        with pytest.raises(InputError, match=f"codes .*{size[0]} rows of {size[1]} numbers"):
            dataclasses.replace(q, shape=torch.Size(size))
    with pytest.raises(InputError, match=r"scales .* in mxfp4 need"):
        dataclasses.replace(q, format=f.MXFP4)
    how = (f.NVFP4.definition, 64, torch.float32)
    for part in scales:
        with pytest.raises(InputError, match="scales"):
            ops.dequantize(q.codes, part, q.amax, *how)
    for part in amax:
        with pytest.raises(InputError, match="amax"):
            ops.dequantize(q.codes, q.scales, part, *how)
    for dtype in ("float32", torch.int32):
        with pytest.raises(InputError, match=r"use .*floating-point dtype"):
            q.dequantize(dtype)  # type: ignore[arg-type]


def test_an_index_is_refused_with_the_cure() -> None:
    q = fp4lab.quantize(torch.randn(4, 32), f.NVFP4)
    with pytest.raises(InputError, match=r"cannot be indexed.*q.dequantize\(\)\[...\]"):
        q[0]


def test_repr_says_what_it_is_in_one_line() -> None:
    x = torch.arange(32.0).reshape(2, 16)
    assert repr(fp4lab.quantize(x, f.NVFP4)) == (
        "QuantizedTensor(nvfp4 2x16, 5.50 bits a value, amax 31, cpu)"
    )
    assert "blocks along dim -2" in repr(fp4lab.quantize(x.t(), f.NVFP4, axis=-2))
    assert "amax" not in repr(fp4lab.quantize(x, f.MXFP4, ragged="pad"))
    assert "meta" in repr(fp4lab.quantize(x, f.NVFP4).to("meta"))
    assert "0x16" in repr(fp4lab.quantize(x[:0], f.NVFP4))


TRANSFORM = f.Hadamard(16, (1, -1) * 8)


def test_a_transform_is_remembered(tmp_path: Path) -> None:
    x = torch.randn(8, 32)
    q = fp4lab.quantize(x, f.NVFP4, hadamard=TRANSFORM)
    plain = fp4lab.quantize(x, f.NVFP4)
    assert "after a Hadamard transform of 16" in repr(q)
    assert "transform" not in repr(plain)
    unmarked = replace(q, hadamard=None)
    assert not q.equal(unmarked)
    assert q.equal(q.to("cpu"))
    fp4lab.save({"q": q, "plain": plain}, tmp_path / "file")
    loaded = fp4lab.load(tmp_path / "file")
    for name, kept in (("q", q), ("plain", plain)):
        again = loaded[name]
        assert isinstance(again, fp4lab.QuantizedTensor)
        assert again.equal(kept)
    with pytest.raises(InputError, match=r"hadamard=.*give a size that divides them"):
        replace(q, hadamard=f.Hadamard(64))
    with pytest.raises(InputError, match=r"hadamard=16 is not a Hadamard"):
        replace(q, hadamard=16)


def test_products_take_what_was_transformed_alike() -> None:
    x, w = torch.randn(8, 32), torch.randn(16, 32)
    a, b = (fp4lab.quantize(t, f.NVFP4, hadamard=TRANSFORM) for t in (x, w))
    plain = fp4lab.quantize(w, f.NVFP4)
    exact = a.dequantize(torch.float64) @ b.dequantize(torch.float64).t()
    assert torch.allclose(fp4lab.scaled_matmul(a, b).double(), exact, rtol=1e-6, atol=1e-6)
    assert torch.allclose(exact, x.double() @ w.double().t(), atol=4)
    for other in (plain, fp4lab.quantize(w, f.NVFP4, hadamard=f.Hadamard(16))):
        with pytest.raises(InputError, match="give hadamard= to both"):
            fp4lab.scaled_matmul(a, other)
        with pytest.raises(InputError, match="give hadamard= to both"):
            fp4lab.grouped_scaled_matmul(a, [other], [8])
        with pytest.raises(InputError, match="all must be alike"):
            fp4lab.grouped_scaled_matmul(a, [b, other], [4, 4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_weights_that_were_transformed_take_x_as_it_is(dtype: torch.dtype) -> None:
    x, w = torch.randn(3, 32).to(dtype), torch.randn(16, 32)
    weight = fp4lab.quantize(w, f.NVFP4, hadamard=TRANSFORM)
    by_hand = fp4lab.packed_linear(hadamard(x, TRANSFORM), replace(weight, hadamard=None))
    assert torch.equal(fp4lab.packed_linear(x, weight), by_hand)
    assert torch.allclose(by_hand.float(), x.float() @ w.t(), atol=4)
