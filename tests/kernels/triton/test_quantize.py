"""Quantizing kernels equal the reference bit for bit: codes, scales, amax, values and operands."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fp4lab import formats
from fp4lab.formats import BlockFormat, Hadamard
from fp4lab.kernels.schema import is_compiled
from tests.kernels import matrices
from tests.kernels.triton.operators import (
    SIGNED,
    STATE,
    Noise,
    Quantization,
    asked_on,
    check,
    computed,
    expected,
    generator,
    noise,
    quantize,
    reference,
    same_bits,
)

pytestmark = pytest.mark.usefixtures("by_tiles")
#: one of each arithmetic: two levels, exponents, float32 scales, selection, and a plain cast
ARITHMETICS = [
    formats.NVFP4,
    formats.NVFP4_16X16,
    formats.NVFP4_ROWWISE,
    formats.MXFP4.replace(scale_rule=formats.ScaleRule.NEAREST),
    formats.MXFP8_E4M3.replace(scale_rule=formats.ScaleRule.EVEN),
    formats.FP8_TENSOR_E5M2,
    formats.get("fp8_row_e4m3_pow2"),
    formats.NVFP4_4OVER6.replace(selection=formats.Selection.MSE),
    formats.BF16,
]


def of_kind(kind: matrices.Draw, seed: int, rows: int, columns: int) -> torch.Tensor:
    return kind(generator(seed), rows, columns).to(torch.float32)


@pytest.mark.parametrize("name", formats.names())
def test_every_format(name: str, device: str) -> None:
    fmt, index = formats.get(name), formats.names().index(name)
    kinds = [matrices.KINDS[(index + 5 * n) % len(matrices.KINDS)] for n in range(2)]
    straight = Quantization(of_kind(kinds[0], index, 41, 71), fmt)
    turned = Quantization(
        of_kind(kinds[1], index, 48, 35).to(torch.bfloat16),
        fmt,
        True,
        SIGNED,
        noise(8, column_offset=16),
    )
    if not is_compiled(fmt):
        # other tools' orders, which torch computes
        assert not any(quantize.takes(asked_on(device, asked)) for asked in (straight, turned))
        return
    check(device, [straight, turned])


@pytest.mark.parametrize(
    "fmt",
    [
        pytest.param(fmt, id=fmt.name, marks=() if n % 3 == 0 else pytest.mark.slow)
        for n, fmt in enumerate(ARITHMETICS)
    ],
)
@pytest.mark.parametrize("kind", matrices.KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_numbers(kind: matrices.Draw, fmt: BlockFormat, device: str) -> None:
    x_MK = of_kind(kind, 1, 32, 64)
    bits = (0, 8, 32)[(matrices.KINDS.index(kind) + ARITHMETICS.index(fmt)) % 3]
    check(device, [Quantization(x_MK, fmt, noise=noise(bits))])


def near_ties(element: formats.ElementType, divisor: float, seed: int) -> Tensor:
    """Rows with their own amax; the rest is an ulp or less from the element's ties under it.

    What is computed in another order falls to the other side of some.
    """
    amax_M1 = torch.rand(32, 1, generator=generator(seed)) + 1
    values = torch.tensor(element.values())
    values = values[values.isfinite() & (values > 0)].sort().values
    ties = (values[1:] + values[:-1]) / 2
    x_MK = amax_M1 * ties.repeat(-(-127 // len(ties)))[:127] / divisor
    return torch.cat((amax_M1, x_MK), dim=1)


@pytest.mark.parametrize("scale", [formats.BlockScale.FOLDED, formats.BlockScale.DIVIDED])
@pytest.mark.parametrize("selection", [formats.Selection.NONE, formats.Selection.MAE])
def test_order_of_a_scales_arithmetic(
    scale: formats.BlockScale, selection: formats.Selection, device: str
) -> None:
    """Blocks of a few elements, so that every number decides a scale."""
    if selection and scale == formats.BlockScale.FOLDED:
        pytest.skip("4-over-6 is defined for DIVIDED scales only")
    sides = (1, 2 if selection else 1)
    fmt = formats.NVFP4_ROWWISE.replace(block=sides, block_scale=scale, selection=selection)
    x_MK = near_ties(formats.E4M3, 448.0, 8).repeat_interleave(sides[1], 1)
    check(device, [Quantization(x_MK, fmt)])


@pytest.mark.parametrize(
    "fmt",
    [
        formats.NVFP4_ROWWISE,
        formats.NVFP4_4OVER6,
        formats.MXFP4.replace(scale_rule=formats.ScaleRule.NEAREST),
        formats.FP8_1X128_E4M3,
        formats.get("fp8_row_e5m2_pow2"),
    ],
    ids=lambda fmt: fmt.name,
)
def test_order_of_an_elements_arithmetic(fmt: BlockFormat, device: str) -> None:
    x_MK = near_ties(fmt.element, fmt.element.max_value, 9)
    check(device, [Quantization(x_MK, fmt)])


@pytest.mark.parametrize("selection", [formats.Selection.MAE, formats.Selection.MSE])
def test_order_of_the_sums_that_select(selection: formats.Selection, device: str) -> None:
    """Blocks for which the reference chooses otherwise when their columns are turned round."""
    fmt = formats.NVFP4_4OVER6.replace(selection=selection)
    x_MK = torch.randint(-24, 25, (40000, 16), generator=generator(4)) / 4
    asked = Quantization(x_MK, fmt, amax=torch.tensor([5.0]))
    turned = asked._replace(x_MK=x_MK.flip(1))
    scales, others = (reference.encoded(one).decode_R1C1 for one in (asked, turned))
    assert scales is not None
    assert others is not None
    sensitive = (scales != others).flatten()
    assert sensitive.any()
    check(device, [asked._replace(x_MK=x_MK[sensitive]), turned._replace(x_MK=x_MK[sensitive])])


@pytest.mark.parametrize(("transposed", "offset"), [(False, 64), (True, 3)])
@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("fmt", ARITHMETICS, ids=lambda fmt: fmt.name)
def test_stochastic_rounding(
    fmt: BlockFormat, bits: int, transposed: bool, offset: int, device: str
) -> None:
    ids = torch.randperm(64, generator=generator(2)) + 2**32 - 7
    x_MK = of_kind(matrices.few_bits, bits, 64, 80)
    drawn = Noise(STATE, (1 << 31) + offset, bits, ids, offset)
    check(device, [Quantization(x_MK, fmt, transposed, noise=drawn)])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", matrices.LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_strides_and_dtypes(
    layout: Callable[[Tensor], Tensor], dtype: torch.dtype, transposed: bool, device: str
) -> None:
    x_MK = of_kind(matrices.some_special, 3, 48, 64)
    view = layout(x_MK)
    size = view.untyped_storage().nbytes() // 4
    store = torch.full((size,), torch.nan, dtype=dtype)
    view = store.as_strided(view.shape, view.stride(), view.storage_offset()).copy_(x_MK)
    if transposed:
        asked = Quantization(view, formats.NVFP4, True, SIGNED)
    else:
        asked = Quantization(view, formats.MXFP4)
    check(device, [asked])


@pytest.mark.parametrize(
    "fmt",
    [
        formats.NVFP4,
        formats.NVFP4_16X16,
        formats.FP8_ROW_E5M2,
        formats.MXFP4,
        formats.FP8_128X128_E4M3,
    ],
    ids=lambda fmt: fmt.name,
)
@pytest.mark.parametrize("shape", [(1, 1), (1, 16), (16, 1), (3, 129), (130, 5)], ids=str)
def test_ragged_edges(shape: tuple[int, int], fmt: BlockFormat, device: str) -> None:
    x_MK = of_kind(matrices.wide_blocks, 4, *shape)
    x_MK[-1, -1] = torch.inf
    check(device, [Quantization(x_MK, fmt, shape[0] > 2)])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32, 64, 128])
def test_every_hadamard_size(size: int, transposed: bool, device: str) -> None:
    shape = (max(size, 16), 37)
    x = of_kind(matrices.ties_in_bf16, size, *shape)
    x_MK = x if transposed else x.t()
    asked = Quantization(x_MK, formats.NVFP4, transposed, Hadamard(size, signs=5))
    if size in (4, 32, 128):
        asked = Quantization(x_MK.half(), formats.MXFP4, transposed, Hadamard(size))
    assert quantize.takes(there := asked_on(device, asked))
    assert all(map(same_bits, quantize.operand(there), expected(asked)[-2:]))


def test_sums_of_zeros_keep_the_references_sign(device: str) -> None:
    x_MK = torch.zeros(8, 16)
    x_MK[::2] = -0.0
    for transform in (
        Hadamard(1, (1,)),
        Hadamard(1, (-1,)),
        Hadamard(4),
        SIGNED,
    ):
        check(device, [Quantization(x_MK, formats.MXFP4, False, transform)])


@pytest.mark.parametrize("amax", [0.0, 1e-42, 3.0, 3e38, torch.inf, -torch.nan], ids=str)
@pytest.mark.parametrize(
    "fmt",
    [formats.NVFP4, formats.NVFP4_4OVER6, formats.NVFP4_ROWWISE],
    ids=lambda fmt: fmt.name,
)
def test_a_given_amax(amax: float, fmt: BlockFormat, device: str) -> None:
    x_MK = of_kind(matrices.on_grid, 5, 24, 48)
    amax_M = torch.linspace(0.5, 2, 24) * amax
    given = amax_M if fmt.level == formats.Level.ROW else torch.tensor([amax])
    check(device, [Quantization(x_MK, fmt, amax=given)])


@pytest.mark.parametrize(
    "change",
    [
        {"amax_target": 6 * 16 / 17},
        {"scale_cap": 256.0},
        {"scale_floor": 2.0**-6},
        {"zero_scale": 0.125},
        {"scale": formats.UE5M3},
        {"scale": formats.BF16_ELEMENT, "scale_cap": 448.0},
        {"element": formats.INT4},
        {"element": formats.E3M2, "block": (4, 8)},
        {"scale_ties": formats.Ties.AWAY, "ties": formats.Ties.ZERO},
        {"block_scale": formats.BlockScale.DIVIDED, "scale_precision": formats.BF16_ELEMENT},
        {"keep_negative_zero": True, "block": (1, 1)},
        {"block": (1, formats.WHOLE)},
        {"block": (formats.WHOLE, formats.WHOLE), "scale": formats.E4M3},
    ],
    ids=str,
)
def test_fields_of_declared_formats(change: dict[str, object], device: str) -> None:
    x_MK = of_kind(matrices.wide_blocks, 6, 20, 56)
    x_MK[3] = -0.0
    fmt = formats.NVFP4.replace(**change)
    check(device, [Quantization(x_MK, fmt), Quantization(x_MK, fmt, True, noise=noise(8))])


def test_addresses_beyond_32_bits(device: str) -> None:
    """Three rows, 2^30 elements apart; memory that nobody touches is not there."""
    stride, columns = (1 << 30) + 8, 40
    if device == "cuda":
        memory = torch.empty(2 * stride + columns, dtype=torch.bfloat16, device=device)
    else:
        size = 2 * (2 * stride + columns)
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory = torch.frombuffer(pages, dtype=torch.bfloat16)
    x_MK = of_kind(matrices.on_grid, 7, 3, columns).to(torch.bfloat16)
    far = memory.as_strided(x_MK.shape, (stride, 1)).copy_(x_MK)
    for transposed in (False, True):
        asked = Quantization(x_MK, formats.NVFP4, transposed)
        assert all(map(same_bits, computed(asked._replace(x_MK=far)), expected(asked)))


def test_native_conversion_is_chosen_for_its_formats_and_chips(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    x_MK = torch.randn(16, 32, device=device)
    asked = Quantization(x_MK, formats.NVFP4)
    assert quantize.native_format(asked)
    assert quantize.native_format(asked._replace(noise=noise(8)))
    for other in (
        asked._replace(noise=noise(32)),
        asked._replace(format=formats.MXFP8_E4M3),
        asked._replace(format=formats.NVFP4.replace(ties=formats.Ties.AWAY)),
    ):
        assert not quantize.native_format(other)
    for major in (9, 10, 12):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, m=major: (m, 0))
        assert quantize.takes_native(asked) == (device == "cuda" and major > 9)


def test_what_is_left_to_the_reference(device: str) -> None:
    x_MK = torch.randn(64, 96, device=device)
    assert quantize.takes(Quantization(x_MK, formats.NVFP4))
    for asked in (
        Quantization(x_MK.double(), formats.NVFP4),
        Quantization(x_MK[:0], formats.NVFP4),
        Quantization(x_MK, formats.NVFP4.replace(block=(1, 24))),
        Quantization(x_MK, formats.NVFP4, False, Hadamard(64)),
        Quantization(x_MK.to("meta"), formats.NVFP4),
    ):
        assert not quantize.takes(asked)
