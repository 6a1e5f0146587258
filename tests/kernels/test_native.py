"""The C version of block quantization equals the reference bit for bit, and can be done without."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fp4lab import formats
from fp4lab.errors import InputError
from fp4lab.kernels import native
from fp4lab.kernels.quantize import dispatch
from fp4lab.kernels.quantize import native as quantize_native
from fp4lab.kernels.quantize.reference import Noise, Quantization, codes_and_scales

STATE = torch.tensor([123, 456, 7, 1])
SHAPES = ((64, 96), (48, 33), (5, 160), (1, 16), (16, 1))


def _plain(x: Tensor) -> Tensor:
    return x


def _grid(x: Tensor) -> Tensor:
    """Multiples of 1/8, so that ties are exact and frequent."""
    return (x * 4).round() / 8


def _wide(x: Tensor) -> Tensor:
    return x * torch.exp(torch.linspace(-60, 60, x.numel()).view_as(x))


def _bf16_values(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(torch.float32)


def _zeros_of_both_signs(x: Tensor) -> Tensor:
    x[:, : x.shape[1] // 2] = 0.0
    x[0] = -0.0
    return x


def _special(x: Tensor) -> Tensor:
    x.view(-1)[0], x.view(-1)[-1], x.view(-1)[x.numel() // 2] = -torch.inf, torch.inf, torch.nan
    return x


def _negative_nan(x: Tensor) -> Tensor:
    x.view(torch.int32).view(-1)[x.numel() // 3] = -1
    return x


def _subnormal(x: Tensor) -> Tensor:
    return x * 1e-40


KINDS = (
    _plain,
    _grid,
    _wide,
    _bf16_values,
    _zeros_of_both_signs,
    _special,
    _negative_nan,
    _subnormal,
)


def results(asked: Quantization) -> list[Tensor]:
    stored = codes_and_scales(dispatch.encoded(asked), asked.format, asked.shape)
    return [*dispatch.operand(asked), dispatch.dequantized(asked), *stored]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Equal bytes, NaN included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype == torch.float32:
        one, other = (t.contiguous().view(torch.int32) for t in (one, other))
    return torch.equal(one, other)


TRANSFORMS = ((1, ()), (16, formats.NVFP4_SIGNS), (32, ()))
CASES = list(itertools.product(TRANSFORMS, SHAPES, (False, True), (0, 8, 32)))


def equal_cases(kind: Callable[[Tensor], Tensor], name: str, cases: list[Any]) -> None:
    fmt = formats.get(name)
    generator = torch.Generator().manual_seed(0)
    taken = 0
    for (size, signs), shape, transposed, bits in cases:
        x_MK = kind(torch.randn(shape, generator=generator))
        noise = Noise(STATE, 3, bits, None, 5) if bits else None
        asked = Quantization(x_MK, fmt, transposed, size, signs, noise)
        if not quantize_native.takes(asked):
            continue
        compiled = results(asked)
        with native.backend("reference"):
            reference = results(asked)
        assert all(map(same_bits, compiled, reference)), (shape, transposed, bits, size)
        taken += 1
    exempt = fmt.block is None or fmt.selection != formats.Selection.NONE
    assert (taken == 0) == exempt


@pytest.mark.parametrize("name", formats.names())
@pytest.mark.parametrize("kind", KINDS)
def test_c_version_equals_the_reference(kind: Callable[[Tensor], Tensor], name: str) -> None:
    """A tenth of the cases, another one for each format and kind of numbers."""
    start = (formats.names().index(name) + 3 * KINDS.index(kind)) % 11
    equal_cases(kind, name, CASES[start::11])


@pytest.mark.slow
@pytest.mark.parametrize("name", formats.names())
def test_c_version_equals_the_reference_in_every_case(name: str) -> None:
    for kind in KINDS:
        equal_cases(kind, name, CASES)


def test_given_amax_row_ids_dtypes_and_strides() -> None:
    x_MK = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    row_ids = torch.randperm(32, generator=torch.Generator().manual_seed(2)) + 2**32 - 7
    noise = Noise(STATE, 1, 8, row_ids, 16)
    views = (x_MK, x_MK[:, ::2], x_MK.t(), x_MK[1:], x_MK.half(), x_MK.bfloat16(), x_MK.double())
    for x, fmt in itertools.product(views, (formats.NVFP4, formats.NVFP4_ROWWISE)):
        rows = x.shape[0] if fmt is formats.NVFP4_ROWWISE else 1
        amax = torch.linspace(1, 9, rows)
        asked = Quantization(x, fmt, noise=noise._replace(row_ids=row_ids[: x.shape[0]]), amax=amax)
        if x.shape[0] > len(row_ids):
            continue
        assert quantize_native.takes(asked)
        compiled = results(asked)
        with native.backend("reference"):
            assert all(map(same_bits, compiled, results(asked)))


def test_fields_of_declared_formats() -> None:
    x_MK = _wide(torch.randn(32, 64, generator=torch.Generator().manual_seed(4)))
    for fmt in (formats.NVFP4, formats.NVFP4_ONE_LEVEL, formats.NVFP4_ROWWISE):
        for change in (
            {"amax_target": 6 * 16 / 17},
            {"scale_cap": 256.0},
            {"scale_floor": 2.0**-6},
            {"zero_scale": 0.125},
            {"scale": formats.UE5M3},
            {"element": formats.INT4},
            {"block": (1, 24)},
        ):
            asked = Quantization(x_MK, fmt.replace(**change))
            assert quantize_native.takes(asked)
            compiled = results(asked)
            with native.backend("reference"):
                assert all(map(same_bits, compiled, results(asked))), (fmt.name, change)


def test_every_hadamard_size() -> None:
    x_MK = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    for size, transposed in itertools.product((1, 2, 4, 8, 16, 32, 64), (False, True)):
        signs = tuple(formats.Hadamard(size, signs=5).vector)
        asked = Quantization(x_MK, formats.MXFP4, transposed, size, signs)
        compiled = results(asked)
        with native.backend("reference"):
            assert all(map(same_bits, compiled, results(asked)))


def test_a_forced_backend_is_used_and_an_unknown_one_refused() -> None:
    asked = Quantization(torch.randn(16, 16), formats.NVFP4)
    with native.backend("reference"):
        assert not quantize_native.takes(asked)
    assert quantize_native.takes(asked)
    with pytest.raises(InputError, match="backend='cuda' is not known"), native.backend("cuda"):
        pass


CHILD = """
import torch, warnings
from fp4lab import formats, quantize
x = torch.linspace(-3, 5, 512).view(16, 32)
with warnings.catch_warnings(record=True) as met:
    warnings.simplefilter("always")
    codes = quantize(x, formats.NVFP4).codes
    quantize(x, formats.NVFP4)
print(len([w for w in met if "without its C version" in str(w.message)]), int(codes.sum()))
"""


def child(cache: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, "XDG_CACHE_HOME": cache, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_compiler_one_warning_and_the_same_codes(tmp_path: object) -> None:
    expected = int(quantize_codes().sum())
    lacking = child(str(tmp_path), CC="/no/such/compiler")
    assert lacking.stdout.split() == ["1", str(expected)], lacking.stderr
    forced = child(str(tmp_path), CC="/no/such/compiler", FP4LAB_BACKEND="native")
    assert forced.returncode == 1
    assert "backend='native' cannot be had" in forced.stderr
    silent = child(str(tmp_path), CC="/no/such/compiler", FP4LAB_BACKEND="reference")
    assert silent.stdout.split() == ["0", str(expected)], silent.stderr


def quantize_codes() -> Tensor:
    from fp4lab import quantize

    return quantize(torch.linspace(-3, 5, 512).view(16, 32), formats.NVFP4).codes
