"""What a caller can get wrong gives one line that names the argument, its value and the cure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fp4lab
from fp4lab import formats as f
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat, ElementType, Specials
from fp4lab.functional import compare

X = torch.randn(32, 64)
Q = fp4lab.quantize(X, f.NVFP4)
STATE = fp4lab.noise_state(0)
SR: dict[str, Any] = {"rounding": f.Rounding.STOCHASTIC_8, "noise": STATE}

#: what is called with what, and the words that the message must have: argument, value, cure
QUANTIZE: dict[str, tuple[tuple[Any, ...], dict[str, Any], list[str]]] = {
    "unknown format": ((X, "nvpf4"), {}, ["format='nvpf4'", "did you mean 'nvfp4'"]),
    "no format": ((X, 4), {}, ["fmt=4", "BlockFormat", "or its name"]),
    "integers": ((X.int(), f.NVFP4), {}, ["x", "torch.int32", "to(torch.float32)"]),
    "a list": (([1.0, 2.0], f.NVFP4), {}, ["x", "list", "torch.as_tensor"]),
    "a scalar": ((torch.tensor(1.0), f.NVFP4), {}, ["x", "scalar", "dimension"]),
    "axis": ((X, f.NVFP4), {"axis": 1}, ["axis=1", "-1", "-2"]),
    "ragged policy": ((X, f.NVFP4), {"ragged": "crop"}, ["ragged='crop'", "error, pad"]),
    "ragged columns": ((X[:, :17], f.NVFP4), {}, ["(32, 17)", "17 values along", "16", "'pad'"]),
    "ragged rows": ((X[:8], f.NVFP4_16X16), {}, ["(8, 64)", "8 values across", "16", "'pad'"]),
    "ragged for the transform": (
        (X[:, :40], f.NVFP4),
        {"hadamard": f.Hadamard(16), "ragged": "pad"},
        ["40", "Hadamard size 16", "smaller size"],
    ),
    "no noise": (
        (X, f.NVFP4),
        {"rounding": f.Rounding.STOCHASTIC_8},
        ["noise=None", "'stochastic8'", "noise_state"],
    ),
    "rounding by name": ((X, f.NVFP4), {"rounding": "nearest"}, ["rounding='nearest'", "Rounding"]),
    "noise of floats": (
        (X, f.NVFP4),
        SR | {"noise": torch.zeros(4)},
        ["noise", "torch.float32", "noise_state"],
    ),
    "short noise": (
        (X, f.NVFP4),
        SR | {"noise": STATE[:3]},
        ["noise", "(3,)", "noise_state"],
    ),
    "an axis that is no integer": ((X, f.NVFP4), {"axis": -1.0}, ["axis=-1.0", "give -1"]),
    "a sparse amax": ((X, f.NVFP4), {"amax": torch.ones(1).to_sparse()}, ["amax", "to_dense"]),
    "sparse noise": (
        (X, f.NVFP4),
        SR | {"noise": fp4lab.noise_state(0).to_sparse()},
        ["noise", "to_dense"],
    ),
    "noise of a seed": ((X, f.NVFP4), SR | {"noise": 3}, ["noise=3", "Tensor", "noise_state(seed"]),
    "rows that do not fit": (
        (X, f.NVFP4),
        SR | {"row_ids": torch.arange(5)},
        ["row_ids", "(5,)", "32 rows"],
    ),
    "real rows": (
        (X, f.NVFP4),
        SR | {"row_ids": torch.rand(32)},
        ["row_ids", "torch.float32", "int64"],
    ),
    "negative column": ((X, f.NVFP4), SR | {"column_offset": -1}, ["column_offset=-1", "from 0"]),
    "column without noise": (
        (X, f.NVFP4),
        SR | {"column_offset": 2**34},
        ["17179869184", "from 0"],
    ),
    "stream by name": ((X, f.NVFP4), SR | {"stream": "a"}, ["stream='a'", "integer"]),
    "amax of no level": (
        (X, f.MXFP4),
        {"amax": torch.ones(1)},
        ["amax", "'mxfp4'", "leave it out"],
    ),
    "amax per row for a tensor": (
        (X, f.NVFP4),
        {"amax": torch.ones(32)},
        ["amax", "(32,)", "(1,)"],
    ),
    "amax of a tensor per row": (
        (X, f.NVFP4_ROWWISE),
        {"amax": torch.ones(1)},
        ["amax", "(1,)", "(32,)"],
    ),
    "negative amax": ((X, f.NVFP4), {"amax": torch.tensor([-1.0])}, ["amax=-1.0", "magnitude"]),
    "transform by size": ((X, f.NVFP4), {"hadamard": 16}, ["hadamard=16", "formats.Hadamard"]),
    "amax as a number": ((X, f.NVFP4), {"amax": 1.0}, ["amax", "float", "torch.as_tensor"]),
    "amax of integers": (
        (X, f.NVFP4),
        {"amax": torch.ones(1).int()},
        ["amax", "torch.int32", "floats"],
    ),
}


def assert_one_line(call: Callable[[], object], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    for word in words:
        assert word in message, message


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (function, name)
        for name, (_, how, _) in QUANTIZE.items()
        for function in (fp4lab.quantize, fp4lab.fake_quantize, fp4lab.error)
        if function is fp4lab.quantize or "hadamard" not in how
    ],
)
def test_quantization(function: Callable[..., object], name: str) -> None:
    args, how, words = QUANTIZE[name]
    assert_one_line(lambda: function(*args, **how), words)


OTHERS: dict[str, tuple[Callable[[], object], list[str]]] = {
    "gradient": (
        lambda: fp4lab.fake_quantize(X, f.NVFP4, gradient="clamp"),  # type: ignore[arg-type]
        ["gradient='clamp'", "identity, masked"],
    ),
    "product of tensors": (
        lambda: fp4lab.scaled_matmul(X, Q),  # type: ignore[arg-type]
        ["a is a Tensor", "fp4lab.quantize"],
    ),
    "product of other lengths": (
        lambda: fp4lab.scaled_matmul(Q, fp4lab.quantize(X[:, :32], f.NVFP4)),
        ["a contracts 64", "b 32", "axis=-2"],
    ),
    "accumulate": (
        lambda: fp4lab.scaled_matmul(Q, Q, accumulate="quick"),  # type: ignore[arg-type]
        ["accumulate='quick'", "exact, fast"],
    ),
    "product of integers": (
        lambda: fp4lab.scaled_matmul(Q, Q, dtype=torch.int32),
        ["dtype=torch.int32", "floating-point"],
    ),
    "integer values": (
        lambda: fp4lab.dequantize(Q, torch.int8),
        ["dtype=torch.int8", "floating-point"],
    ),
    "cast to a scale": (
        lambda: fp4lab.cast(X, f.E8M0),
        ["element='e8m0'", "BlockFormat"],
    ),
    "cast to an unsigned type": (
        lambda: fp4lab.cast(X, f.UE4M3),
        ["element='ue4m3'", "BlockFormat"],
    ),
    "cast to an unknown name": (
        lambda: fp4lab.cast(X, "e2m"),
        ["element='e2m'", "use one of e2m1, e2m3"],
    ),
    "cast to a number": (
        lambda: fp4lab.cast(X, 4),  # type: ignore[arg-type]
        ["element=4", "fp4lab.formats"],
    ),
    "cast of a list": (
        lambda: fp4lab.cast([1.0], f.E2M1),  # type: ignore[arg-type]
        ["x is a list", "torch.as_tensor"],
    ),
    "dequantize what is a tensor": (
        lambda: fp4lab.dequantize(X),  # type: ignore[arg-type]
        ["q=Tensor", "quantize it"],
    ),
    "another device by dtype": (
        lambda: Q.to(torch.float16),  # type: ignore[arg-type]
        ["torch.float16", "dequantize(dtype)"],
    ),
    "equal to a tensor": (
        lambda: Q.equal(X),  # type: ignore[arg-type]
        ["other=Tensor", "QuantizedTensor"],
    ),
    "saving what has no name": (
        lambda: fp4lab.save(Q, "x.safetensors"),  # type: ignore[arg-type]
        ["tensors=", "Mapping", "dictionary"],
    ),
    "figures of other shapes": (
        lambda: compare(X, X[:1]),
        ["(32, 64)", "(1, 64)"],
    ),
    "rows of the swizzle": (
        lambda: fp4lab.unswizzle_128x4(torch.zeros(128, 4, dtype=torch.uint8), -1, 2),
        ["num_rows=-1", "from 0"],
    ),
    "swizzle of floats": (
        lambda: fp4lab.swizzle_128x4(X),
        ["(32, 64)", "torch.float32", "one-byte"],
    ),
    "ties by name": (
        lambda: fp4lab.cast(X, f.E2M1, ties="even"),  # type: ignore[arg-type]
        ["ties='even'", "formats.Ties"],
    ),
    "overflow by name": (
        lambda: fp4lab.cast(X, f.E2M1, overflow="special"),  # type: ignore[arg-type]
        ["overflow='special'", "formats.Overflow"],
    ),
    "dtype by name": (
        lambda: fp4lab.scaled_matmul(Q, Q, dtype="float32"),  # type: ignore[arg-type]
        ["dtype='float32'", "torch.float32"],
    ),
    "a seed that is no number": (
        lambda: fp4lab.noise_state("a"),  # type: ignore[arg-type]
        ["seed='a'", "integer from 0 to 2^63 - 1"],
    ),
    "a seed that is a truth": (lambda: fp4lab.noise_state(True), ["seed=True", "integer"]),
    "a step before the first": (
        lambda: fp4lab.noise_state(0, step=-1),
        ["step=-1", "from 0 to 2^32 - 1"],
    ),
    "signs in a list": (
        lambda: f.Hadamard(4, [1, 1, 1, 1]),  # type: ignore[arg-type]
        ["signs=[1, 1, 1, 1]", "tuple"],
    ),
    "a real size": (
        lambda: f.Hadamard(16.0),  # type: ignore[arg-type]
        ["size=16.0", "integer"],
    ),
    "a real bias": (
        lambda: ElementType("mine", 4, 3, 7.5),  # type: ignore[arg-type]
        ["bias=7.5", "'mine'", "whole number"],
    ),
    "unknown format": (lambda: f.get("nvpf4"), ["'nvpf4'", "'nvfp4'"]),
    "taken name": (
        lambda: f.register(f.MXFP4.replace(name="nvfp4")),
        ["name='nvfp4'", "another name"],
    ),
    "size of a transform": (lambda: f.Hadamard(12), ["size=12", "power of two"]),
    "signs of a transform": (
        lambda: f.Hadamard(4, (1, -1)),
        ["2 entries", "size=4", "one sign per entry"],
    ),
    "a sign": (lambda: f.Hadamard(2, (1, 0)), ["(1, 0)", "-1 and 1"]),
    "a code": (lambda: f.E2M1.decode(16), ["code=16", "4 bits"]),
    "all values of a long type": (f.BF16_ELEMENT.values, ["'bf16'", "8 bits"]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions(name: str) -> None:
    assert_one_line(*OTHERS[name])


ELEMENTS: dict[str, tuple[tuple[Any, ...], list[str]]] = {
    "no exponent": ((0, 3, 1), ["exponent_bits=0", "1 to 8"]),
    "long mantissa": ((5, 24, 15), ["mantissa_bits=24", "0 to 23"]),
    "17 bits": ((5, 11, 15), ["17 bits", "at most 16"]),
    "steps below float32": ((7, 7, 127), ["bias=127", "2^-126"]),
    "steps above float32": ((7, 3, 19), ["bias=19", "2^103"]),
    "a short float32 without infinity": ((8, 3, 127), ["bias=127", "2^-126"]),
    "no code for NaN": ((4, 0, 7, Specials.IEEE), ["specials=IEEE", "Specials.NAN or NONE"]),
    "no normal number": ((1, 2, 0, Specials.IEEE), ["specials=IEEE", "more exponent bits"]),
    "a sign that is a number": ((2, 1, 1, Specials.NONE, 2), ["signed=2", "bool"]),
    "a zero that is a word": ((2, 1, 1, Specials.NONE, True, "no"), ["has_zero='no'", "bool"]),
    "a truth value for a width": ((2, True, 1), ["mantissa_bits=True", "int"]),
    "signed scale": ((8, 0, 127, Specials.NAN, True, False), ["has_zero=False", "signed=False"]),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_element_types(name: str) -> None:
    args, words = ELEMENTS[name]
    assert_one_line(lambda: ElementType("mine", *args), ["mine", *words])


FORMATS: dict[str, tuple[BlockFormat, dict[str, Any], list[str]]] = {
    "element by name": (f.NVFP4, {"element": "e2m1"}, ["element='e2m1'", "ElementType", "formats"]),
    "scale by name": (f.NVFP4, {"scale": "e4m3"}, ["scale='e4m3'", "ElementType"]),
    "level by name": (f.NVFP4, {"level": "tensor"}, ["level='tensor'", "Level"]),
    "rule by name": (f.MXFP4, {"scale_rule": "floor"}, ["scale_rule='floor'", "ScaleRule"]),
    "ties of MX scales": (
        f.MXFP4,
        {"scale_ties": f.Ties.AWAY},
        ["scale_ties=AWAY", "FOLDED or DIVIDED"],
    ),
    "precision of folded scales": (
        f.NVFP4,
        {"scale_precision": f.BF16_ELEMENT},
        ["scale_precision='bf16'", "DIVIDED"],
    ),
    "block without scale": (f.NVFP4, {"scale": None}, ["scale=None", "give both"]),
    "scale without block": (f.NVFP4, {"block": None}, ["block=None", "give both"]),
    "level without block": (f.BF16, {"level": f.Level.TENSOR}, ["level", "set block and scale"]),
    "negative block": (f.NVFP4, {"block": (1, -16)}, ["block=(1, -16)", "WHOLE"]),
    "an endless block": (f.NVFP4, {"block": (1, 1 << 40)}, ["block=(1, 1099511627776)", "WHOLE"]),
    "a word for a truth value": (f.NVFP4, {"keep_negative_zero": "no"}, ["'no'", "bool"]),
    "floor between two scales of 16 bits": (
        f.NVFP4,
        {"scale": f.BF16_ELEMENT, "scale_floor": 0.1},
        ["scale_floor=0.1", "'bf16'", "choose one"],
    ),
    "zero scale beyond 16 bits": (
        f.NVFP4,
        {"scale": f.FP16_ELEMENT, "zero_scale": 1e6},
        ["zero_scale=1000000.0", "'fp16'"],
    ),
    "unsigned element": (f.NVFP4, {"element": f.UE4M3}, ["element='ue4m3'", "another element"]),
    "element without zero": (f.MXFP4, {"element": f.E8M0}, ["element='e8m0'", "another element"]),
    "wide element": (f.BF16, {"element": f.FP32}, ["element='fp32'", "another element"]),
    "E8M0 for NVFP4": (f.NVFP4, {"scale": f.E8M0}, ["scale='e8m0'", "FOLDED", "POWER_OF_TWO"]),
    "E4M3 for MXFP4": (f.MXFP4, {"scale": f.E4M3}, ["scale='e4m3'", "E8M0"]),
    "E4M3 for FP8": (f.FP8_ROW_E4M3, {"scale": f.E4M3}, ["scale='e4m3'", "FP32"]),
    "rule for NVFP4": (
        f.NVFP4,
        {"scale_rule": f.ScaleRule.FLOOR},
        ["scale_rule=FLOOR", "FOLDED", "use NEAREST"],
    ),
    "rule for FP8": (
        f.FP8_ROW_E4M3,
        {"scale_rule": f.ScaleRule.EVEN},
        ["scale_rule=EVEN", "NEAREST or ROUND_UP"],
    ),
    "level for MXFP4": (f.MXFP4, {"level": f.Level.TENSOR}, ["level=TENSOR", "FOLDED or DIVIDED"]),
    "level per row of tiles": (
        f.NVFP4_16X16,
        {"level": f.Level.ROW},
        ["block=(16, 16)", "blocks of 1 row"],
    ),
    "a scale too wide to aim at": (
        f.NVFP4,
        {"scale": f.FP32},
        ["too wide", "3.4e+38", "set scale_cap"],
    ),
    "cap": (f.NVFP4, {"scale_cap": -1.0}, ["scale_cap=-1.0", "finite"]),
    "floor": (f.NVFP4, {"scale_floor": float("nan")}, ["scale_floor=nan", "finite"]),
    "zero scale": (f.NVFP4, {"zero_scale": float("inf")}, ["zero_scale=inf", "finite"]),
    "a constant of another type": (f.NVFP4, {"scale_cap": "448"}, ["scale_cap='448'", "scale"]),
    "a constant beyond float32": (f.FP8_ROW_E4M3, {"zero_scale": 1e39}, ["zero_scale=1e+39"]),
    "a constant of a plain cast": (f.BF16, {"scale_floor": 1.0}, ["scale_floor=1.0", "set block"]),
    "a rule of a plain cast": (f.BF16, {"scale_rule": f.ScaleRule.CEIL}, ["scale_rule=CEIL"]),
    "ties of a plain cast's scales": (f.BF16, {"scale_ties": f.Ties.AWAY}, ["scale_ties=AWAY"]),
    "4-over-6 of a plain cast": (f.BF16, {"selection": f.Selection.MSE}, ["selection=MSE"]),
    "arithmetic of a plain cast": (
        f.BF16,
        {"block_scale": f.BlockScale.DIVIDED},
        ["block_scale=DIVIDED", "set block"],
    ),
    "a block of truth values": (f.NVFP4, {"block": (True, 16)}, ["block=(True, 16)"]),
    "floor between two scales": (
        f.NVFP4,
        {"scale_floor": 0.3},
        ["scale_floor=0.3", "'e4m3'", "choose one"],
    ),
    "zero scale beyond the type": (
        f.NVFP4,
        {"zero_scale": 1e9},
        ["zero_scale=1000000000.0", "no value of its scale type"],
    ),
    "floor of a power of two": (
        f.MXFP4,
        {"scale_floor": 0.5},
        ["scale_floor=0.5", "does nothing", "POWER_OF_TWO"],
    ),
    "target below the elements": (
        f.NVFP4,
        {"amax_target": 1e-3},
        ["amax_target=0.001", "smallest element 0.5"],
    ),
    "4-over-6 of folded scales": (
        f.NVFP4,
        {"selection": f.Selection.MAE},
        ["selection=MAE", "block_scale=DIVIDED or FOUROVERSIX"],
    ),
    "search with two levels": (
        f.NVFP4,
        {"selection": f.Selection.SEARCH},
        ["selection=SEARCH", "block_scale=QWANTIZE"],
    ),
    "search among scales of 16 bits": (
        f.NVFP4_QWANTIZE_OPTIMAL,
        {"scale": f.BF16_ELEMENT},
        ["scale='bf16'", "use 8 bits"],
    ),
    "ggml with a second level": (
        f.NVFP4_GGML,
        {"level": f.Level.TENSOR},
        ["level=TENSOR", "GGML", "leave it out"],
    ),
    "ggml with other ties": (f.NVFP4_GGML, {"ties": f.Ties.EVEN}, ["GGML", "ties=ZERO"]),
    "ggml with another scale": (f.NVFP4_GGML, {"scale": f.UE5M3}, ["'ue5m3'", "E4M3 or UE4M3"]),
    "ggml with a floor": (f.NVFP4_GGML, {"scale_floor": 0.125}, ["scale_floor=0.125", "GGML"]),
    "zeros of a cast": (f.BF16, {"zeros": f.Zeros.POSITIVE}, ["zeros=POSITIVE", "a block scale"]),
    "zeros by number": (f.NVFP4, {"zeros": 2}, ["zeros=2", "Zeros"]),
    "4-over-6 of 3 rows": (
        f.NVFP4_4OVER6,
        {"block": (3, 16)},
        ["block=(3, 16)", "power of two"],
    ),
    "4-over-6 of whole rows": (
        f.NVFP4_4OVER6,
        {"block": (1, f.WHOLE)},
        ["block=(1, 0)", "fixed sides"],
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_block_formats(name: str) -> None:
    base, changes, words = FORMATS[name]
    assert_one_line(lambda: base.replace(**changes), [repr(base.name), *words])


def test_a_format_s_name_is_text() -> None:
    assert_one_line(lambda: f.NVFP4.replace(name=5), ["name=5", "text"])


def test_a_name_with_a_line_break_gives_one_line() -> None:
    assert_one_line(lambda: f.get("nv\nfp4"), ["format='nv\\nfp4'", "'nvfp4'"])
