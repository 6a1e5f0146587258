"""One quantization, and who computes it: the C version where it takes the case."""

from __future__ import annotations

from torch import Tensor

from fp4lab.kernels.minifloat.reference import round_nearest
from fp4lab.kernels.quantize import native, reference
from fp4lab.kernels.quantize.native import Result
from fp4lab.kernels.quantize.reference import Encoded, Quantization
from fp4lab.kernels.quantize.scales import positive_nan_


def encoded(asked: Quantization) -> Encoded:
    """Element values and scales."""
    quantized = _native(asked, Result.ELEMENTS)
    if quantized is None:
        return reference.encoded(asked)
    values, decode, amax = quantized
    return Encoded(reference.blocked(values, asked.format), decode[:, None, :, None], amax)


def operand(asked: Quantization) -> tuple[Tensor, Tensor]:
    """What enters a product, and what is left for its epilogue."""
    fmt = asked.format
    if fmt.block is None and asked.noise is None:
        # a plain cast has no scales to lay out
        z = reference.prepare(asked)
        values = round_nearest(z, fmt.element, fmt.ties, fmt.overflow)
        return positive_nan_(values), z.new_zeros(0)
    quantized = _native(asked, Result.ELEMENTS if fmt.whole_rows else Result.OPERAND)
    if quantized is None:
        return reference.operand(reference.encoded(asked), fmt, asked.shape)
    values, decode, amax = quantized
    return values, reference.epilogue(decode, amax, fmt, asked.shape[0])


def dequantized(asked: Quantization) -> Tensor:
    """The float32 values that codes and scales stand for."""
    quantized = _native(asked, Result.DEQUANTIZED)
    if quantized is None:
        return reference.dequantized(reference.encoded(asked), asked.format, asked.shape)
    return quantized.values


def _native(asked: Quantization, result: Result) -> native.Quantized | None:
    """The C version's answer in the operand's orientation, or None where it has none."""
    if not native.takes(asked):
        return None
    values, decode, amax = native.quantize(asked, result)
    if asked.transposed:
        values, decode = values.t(), decode.t()
    return native.Quantized(values, decode, amax)
