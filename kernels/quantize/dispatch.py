"""One quantization, and who computes it: the C version where it takes the case."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fp4lab.formats import BlockFormat
from fp4lab.kernels.minifloat.reference import round_nearest
from fp4lab.kernels.quantize import native, reference
from fp4lab.kernels.quantize.native import Result
from fp4lab.kernels.quantize.reference import Encoded, Noise


class Quantization(NamedTuple):
    """What is asked for; the fields are explained in `fp4lab.kernels.ops`."""

    x_MK: Tensor
    format: BlockFormat
    transposed: bool = False
    hadamard: int = 1
    signs: tuple[int, ...] = ()
    noise: Noise | None = None
    amax: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the operand (blocks run along its columns)."""
        rows, columns = self.x_MK.shape
        return (columns, rows) if self.transposed else (rows, columns)

    def encoded(self) -> Encoded:
        """Element values and scales."""
        quantized = self._native(Result.ELEMENTS)
        if quantized is None:
            return self._reference()
        values, decode, amax = quantized
        return Encoded(reference.blocked(values, self.format), decode[:, None, :, None], amax)

    def operand(self) -> tuple[Tensor, Tensor]:
        """What enters a product, and what is left for its epilogue."""
        if self.format.block is None and self.noise is None:
            # a plain cast has no scales to lay out
            z = reference.prepare(self.x_MK, self.transposed, self.hadamard, list(self.signs))
            fmt = self.format
            return round_nearest(z, fmt.element, fmt.ties, fmt.overflow), z.new_zeros(0)
        whole_rows = self.format.whole_rows
        quantized = self._native(Result.ELEMENTS if whole_rows else Result.OPERAND)
        if quantized is None:
            return reference.operand(self._reference(), self.format, self.shape)
        values, decode, amax = quantized
        return values, reference.epilogue(decode, amax, self.format, self.shape[0])

    def dequantized(self) -> Tensor:
        """The float32 values that codes and scales stand for."""
        quantized = self._native(Result.DEQUANTIZED)
        if quantized is None:
            return reference.dequantized(self._reference(), self.format, self.shape)
        return quantized.values

    def _native(self, result: Result) -> native.Quantized | None:
        """The C version's answer in the operand's orientation, or None where it has none."""
        signs = list(self.signs)
        if not native.takes(self.x_MK, self.format, self.hadamard, signs, self.transposed):
            return None
        values, decode, amax = native.quantize(
            self.x_MK,
            self.format,
            result,
            transposed=self.transposed,
            hadamard=self.hadamard,
            signs=signs,
            noise=self.noise,
            amax=self.amax,
        )
        if self.transposed:
            values, decode = values.t(), decode.t()
        return native.Quantized(values, decode, amax)

    def _reference(self) -> Encoded:
        z = reference.prepare(self.x_MK, self.transposed, self.hadamard, list(self.signs))
        rows, columns = self.x_MK.shape
        random = reference.draw(self.noise, rows, columns, self.transposed)
        return reference.quantize_blocks(z, self.format, amax=self.amax, noise_MK=random)
