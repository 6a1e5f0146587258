"""Scales at the edges: zeros, tiny and huge blocks, exact powers of two, signs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import fp4lab
from fp4lab import formats as f
from fp4lab.formats import BlockFormat, ScaleRule
from fp4lab.kernels.hadamard.reference import hadamard
from fp4lab.kernels.minifloat.reference import decode

FORMATS = [f.get(name) for name in f.names()]
SCALED = [fmt for fmt in FORMATS if fmt.block is not None]
NVFP4 = [f.NVFP4, f.NVFP4_16X16, f.NVFP4_ROWWISE, f.NVFP4_ONE_LEVEL, f.NVFP4_4OVER6]
#: E4M3 scales alone, whose range ends soon
ONE_LEVEL = [fmt for fmt in SCALED if fmt.rounds_scale and fmt.level == f.Level.NONE]
MX = [fmt for fmt in FORMATS if fmt.name.startswith("mx")]


#: the nearest power of two may be 1/1.5 of what the largest value needs
CLIPPED = 0.34


def name(fmt: BlockFormat) -> str:
    return fmt.name


def scales(q: fp4lab.QuantizedTensor) -> Tensor:
    assert q.format.scale is not None
    return q.scales if q.format.scale == f.FP32 else decode(q.scales, q.format.scale)


@pytest.mark.parametrize("fmt", SCALED, ids=name)
def test_one_live_block_among_zeros(fmt: BlockFormat) -> None:
    """Edge case B01: scales of zero blocks are finite bytes, and the blocks decode to zeros."""
    x = torch.zeros(2, 32)
    x[0, 0] = 1e-3
    q = fp4lab.quantize(x, fmt, ragged="pad")
    assert scales(q).isfinite().all()
    values = q.dequantize()
    assert values.isfinite().all()
    assert not values[x == 0].any()
    if fmt not in ONE_LEVEL:
        # one level cannot: 1e-3 / 6 is below half of E4M3's smallest number
        assert abs(values[0, 0].item() / 1e-3 - 1) < CLIPPED


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_an_all_zero_tensor_has_zero_codes(fmt: BlockFormat) -> None:
    """Edge case B02; tools that divide by their decode scale 0 make NaN of it, as they do."""
    for x in (torch.zeros(16, 16), torch.zeros(256), torch.zeros(0, 16)):
        q = fp4lab.quantize(x, fmt, ragged="pad")
        # ModelOpt's MXFP4 stores zeros as -0
        negative = fmt.zeros == f.Zeros.NEGATIVE
        assert (q.codes == (0x88 if negative else 0)).all()
        assert (q.tensor_scale == (1.0 if fmt.direction == f.Direction.ENCODE else 0.0)).all()
        if fmt.direction == f.Direction.DECODE:
            assert scales(q).isnan().all()
            continue
        assert scales(q).isfinite().all() if fmt.scale is not None else True
        assert torch.equal(q.dequantize(), x)
        assert (q.dequantize().signbit() == negative).all()


@pytest.mark.parametrize("fmt", [f.NVFP4_ROWWISE, f.FP8_ROW_E4M3, f.FP8_ROW_E5M2], ids=name)
def test_a_zero_row_leaves_its_neighbours_alone(fmt: BlockFormat) -> None:
    """Edge case B03: with a scale per row."""
    x = torch.randn(3, 16)
    x[1] = 0
    values = fp4lab.fake_quantize(x, fmt)
    assert not values[1].any()
    for row in (0, 2):
        assert torch.equal(values[row], fp4lab.fake_quantize(x[row], fmt))


@pytest.mark.parametrize("fmt", [f.FP8_1X128_E4M3, f.FP8_128X128_E5M2, f.MXFP8_E4M3], ids=name)
def test_padding_tokens_stay_exactly_zero(fmt: BlockFormat) -> None:
    """Edge case B04: a zero block inside a batch."""
    x = torch.randn(256, 256)
    x[128:] = 0
    values = fp4lab.fake_quantize(x, fmt)
    assert values.isfinite().all()
    assert not values[128:].any()
    assert torch.equal(values[:128], fp4lab.fake_quantize(x[:128], fmt))


@pytest.mark.parametrize("fmt", NVFP4, ids=name)
def test_a_block_below_the_scale_type_vanishes(fmt: BlockFormat) -> None:
    """Edge case B05: scale byte 0, codes at the largest number, values exactly 0, never NaN."""
    x = torch.zeros(16, 32)
    x[0, 0] = 1e4
    x[:, 16:] = 1e-6
    if fmt.level == f.Level.NONE:
        x[:, 16:] = 1e-3
    q = fp4lab.quantize(x, fmt)
    assert scales(q).isfinite().all()
    values = q.dequantize()
    assert values.isfinite().all()
    gone = values[0, 16:] if fmt == f.NVFP4_ROWWISE else values[:, 16:]
    assert not gone.any()
    assert scales(q)[0, 1] == 0
    assert (q.codes[0, 8:] == 0x77).all()


@pytest.mark.parametrize("fmt", MX, ids=name)
@pytest.mark.parametrize("magnitude", [1e-36, 9e-40, 1e-45])
def test_the_smallest_bf16_numbers_quantize_to_finite_values(
    fmt: BlockFormat, magnitude: float
) -> None:
    """Edge case B10: E8M0 exponents end at -127."""
    x = (torch.rand(4, 32) * magnitude).to(torch.bfloat16)
    x[0, 0] = magnitude
    q = fp4lab.quantize(x, fmt, ragged="pad")
    assert (q.scales < 255).all()
    values = q.dequantize()
    assert values.isfinite().all()
    if magnitude > 1e-37:
        assert abs(values[0, 0] / x[0, 0].float() - 1) < CLIPPED
    else:
        assert (q.scales <= 127 - 120).all()
    assert fp4lab.fake_quantize(x, fmt, ragged="pad").isfinite().all()


@pytest.mark.parametrize("fmt", [f.MXFP4, f.MXFP8_E4M3, f.MXFP8_E5M2, f.MXFP6_E2M3], ids=name)
def test_exact_powers_of_two_map_to_themselves(fmt: BlockFormat) -> None:
    """Edge case B13: amax / M = 2^k has the scale 2^k, and the next float32 has 2^(k+1)."""
    k = torch.arange(-126, 127 - fmt.element.max_exponent)
    exact = fmt.element.max_value * 2.0 ** k.double()
    x = torch.zeros(len(k), 32)
    x[:, 3] = exact.float()
    above = -x.nextafter(torch.tensor(torch.inf)) * (x > 0)
    for rule, raised in ((ScaleRule.ROUND_UP, 1), (ScaleRule.NEAREST, 0)):
        rounded = fmt.replace(scale_rule=rule)
        assert torch.equal(fp4lab.quantize(x, rounded).scales[:, 0], (127 + k).to(torch.uint8))
        bytes_ = fp4lab.quantize(above, rounded).scales[:, 0]
        assert torch.equal(bytes_, (127 + k + raised).to(torch.uint8))
    assert torch.equal(fp4lab.fake_quantize(x, fmt), x)


@pytest.mark.parametrize("element", ["e4m3", "e5m2"])
def test_power_of_two_fp8_scales_of_exact_powers(element: str) -> None:
    """Edge case B13, for float32 scales."""
    fmt = f.get(f"fp8_row_{element}_pow2")
    k = torch.arange(-100, 100)
    x = (fmt.element.max_value * 2.0 ** k.double()).float().view(-1, 1)
    assert torch.equal(fp4lab.quantize(x, fmt).scales, 2.0 ** k.view(-1, 1))
    above = x.nextafter(torch.tensor(torch.inf))
    assert torch.equal(fp4lab.quantize(above, fmt).scales, 2.0 ** (k + 1).view(-1, 1))


def test_the_amax_of_a_transformed_bf16_tensor_is_that_of_the_rounded_transform() -> None:
    """Edge case B15: the transform is rounded to bf16, and amax is taken after that.

    So the golden arrays have it. That of the float32 transform is given as an argument, and then
    kept and used.
    """
    transform = f.Hadamard(16, f.NVFP4_SIGNS)
    differed = False
    for seed in range(20):
        x = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
        q = fp4lab.quantize(x, f.NVFP4, hadamard=transform)
        assert q.amax == hadamard(x, transform).abs().max().float()
        unrounded = hadamard(x.float(), transform).abs().max().view(1)
        differed |= bool(q.amax != unrounded)
        other = fp4lab.quantize(x, f.NVFP4, hadamard=transform, amax=unrounded)
        assert other.amax == unrounded
        by_hand = fp4lab.quantize(hadamard(x, transform), f.NVFP4, amax=unrounded)
        assert torch.equal(other.scales, by_hand.scales)
        assert torch.equal(other.codes, by_hand.codes)
    assert differed


@pytest.mark.parametrize("fmt", SCALED, ids=name)
def test_scales_come_from_magnitudes(fmt: BlockFormat) -> None:
    """Edge case B16: the extreme is negative, and so are whole blocks."""
    x = torch.rand(16, 128) + 0.1
    x[:, 0] = -100.0
    for tensor in (x, -x.abs(), -x):
        q, mirrored = (fp4lab.quantize(t, fmt, ragged="pad") for t in (tensor, -tensor))
        assert torch.equal(q.scales, mirrored.scales)
        assert torch.equal(q.tensor_scale, mirrored.tensor_scale)
        assert torch.equal(q.dequantize(), -mirrored.dequantize())
        assert abs(q.dequantize()[0, 0].abs().item() / 100 - 1) < CLIPPED


@pytest.mark.parametrize("fmt", SCALED, ids=name)
def test_the_largest_values_never_become_nan(fmt: BlockFormat) -> None:
    """Values that round up past float32's largest are infinite, and no others.

    With a second level the product of block scale and amax comes first, as in Transformer Engine:
    an amax above FLT_MAX / 448 overflows there. (fouroversix: the product of an element too.)
    """
    room = 6 * 448 if fmt.block_scale == f.BlockScale.FOUROVERSIX else 448
    largest = torch.finfo(torch.float32).max / (1 if fmt.level == f.Level.NONE else room)
    x = torch.tensor([largest, -largest, largest / 3, largest / 2, largest / 1e6] * 26)
    values = fp4lab.fake_quantize(x.repeat(2, 1), fmt, ragged="pad")
    assert not values.isnan().any()
    assert values[:, 3::5].isfinite().all()
    beyond = values.isinf()
    assert torch.equal(values[beyond].sign(), x.repeat(2, 1)[beyond].sign())


@pytest.mark.parametrize("fmt", SCALED, ids=name)
def test_powers_of_two_pass_through(fmt: BlockFormat) -> None:
    """Scaling x by 2^k scales the values by 2^k and changes no code."""
    x = torch.randn(16, 128)
    base = fp4lab.quantize(x, fmt, ragged="pad")
    for k in (-40, -3, 1, 40):
        if fmt in ONE_LEVEL:
            continue
        q = fp4lab.quantize(x * 2.0**k, fmt, ragged="pad")
        assert torch.equal(q.codes, base.codes)
        assert torch.equal(q.dequantize(), base.dequantize() * 2.0**k)
