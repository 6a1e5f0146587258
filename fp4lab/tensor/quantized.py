"""QuantizedTensor: codes, block scales, tensor scale, format, logical shape.

A quantized tensor is a value, not a `torch.Tensor` subclass: it has no autograd and no implicit
arithmetic. Codes and scales are plain bytes (`uint8`; float32 where a format's scales are), so
every torch release can copy, move and store them. The tensor scale is an amax, unless the format is
that of a tool that stores its encode or decode scale: the format says which, and so does a file.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from fp4lab.errors import InputError, expect
from fp4lab.formats import BlockFormat, Direction, Hadamard
from fp4lab.kernels import ops
from fp4lab.kernels.quantize.stored import check_parts

_PARTS = ("codes", "scales", "tensor_scale")

#: pairs of numbers, and powers of two without a sign
_NO_RESULT = (torch.float4_e2m1fn_x2, torch.float8_e8m0fnu)


def check_result(dtype: torch.dtype, held: str) -> None:
    """InputError unless a result of this dtype can hold the values, or the product."""
    expect("dtype", dtype, torch.dtype, "use torch.float32 or another floating-point dtype")
    if not dtype.is_floating_point or dtype in _NO_RESULT:
        raise InputError(
            f"dtype={dtype} cannot hold the {held}; use torch.float32 or another floating-point "
            "dtype"
        )


@dataclass(frozen=True, eq=False, repr=False)
class QuantizedTensor:
    """A tensor in a block format.

    Args:
        codes: element codes of the matrix of rows along which blocks run: `[M, K]` uint8,
            `[M, ceil(K/2)]` for 4-bit elements (even columns in the low nibble), int16 bit patterns
            for 16-bit elements.
        scales: block scales `[ceil(M/r), ceil(K/c)]`, bytes of the scale type or float32; `[0, 0]`
            for a plain cast.
        tensor_scale: what the second level stores, float32 `[1]`, `[M]`, or `[0]` without one: an
            amax, or the encode or decode scale (`format.direction`).
        format: the block format.
        shape: logical shape; all dimensions before the last are flattened to rows.
        axis: -1, or -2 when blocks run along the rows: the stored matrix is then the transpose.
        hadamard: the transform that was applied along the blocks before: the values are those of
            the transformed tensor. Products take two tensors that were transformed alike.

    Raises:
        InputError: parts whose shapes, dtypes or devices do not belong together.

    >>> import fp4lab
    >>> q = fp4lab.quantize(torch.arange(64.0).reshape(2, 2, 16), "nvfp4")
    >>> q.codes.shape, q.scales.shape, q.tensor_scale, q.nbytes
    (torch.Size([4, 8]), torch.Size([4, 1]), tensor([63.]), 40)
    """

    codes: Tensor
    scales: Tensor
    tensor_scale: Tensor
    format: BlockFormat
    shape: torch.Size
    axis: int = -1
    hadamard: Hadamard | None = None

    def __post_init__(self) -> None:
        for name, part in zip(_PARTS, self.parts(), strict=True):
            expect(name, part, Tensor, "give the part of a tensor that fp4lab.quantize made")
        expect("format", self.format, BlockFormat, "use formats.get(name)")
        expect("shape", self.shape, torch.Size, "give the torch.Size of the values")
        cure = "use formats.Hadamard(size), or None"
        expect("hadamard", self.hadamard, Hadamard, cure, optional=True)
        if not self.shape or self.axis not in (-1, -2):
            raise InputError(
                f"shape={tuple(self.shape)} with axis={self.axis!r}: give at least one dimension, "
                "and -1 or -2"
            )
        check_parts(self.parts(), self.format, *self.matrix_shape)
        if self.hadamard is not None and self.matrix_shape[1] % self.hadamard.size:
            raise InputError(
                f"hadamard={self.hadamard!r} with {self.matrix_shape[1]} values along the blocks: "
                "give a size that divides them, or None"
            )
        for name in ("scales", "tensor_scale"):
            # no gradient flows through scales
            if getattr(self, name).requires_grad:
                object.__setattr__(self, name, getattr(self, name).detach())

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows and columns of the stored matrix (blocks run along its columns)."""
        columns = self.shape[-1]
        rows = self.shape[:-1].numel()
        return (rows, columns) if self.axis == -1 else (columns, rows)

    @property
    def amax(self) -> Tensor:
        """The second-level amax: float32 `[1]`, `[M]`, or `[0]` without a second level.

        Raises:
            InputError: the format stores another number, from which an amax cannot be had exactly.

        >>> import fp4lab
        >>> fp4lab.quantize(torch.ones(16), "nvfp4").amax
        tensor([1.])
        """
        if (direction := self.format.direction) != Direction.AMAX:
            raise InputError(
                f"amax of a tensor in {self.format.name!r}: it stores its {direction.words}, which "
                "gives no exact amax; use q.tensor_scale"
            )
        return self.tensor_scale

    @property
    def transform(self) -> str:
        """Size and signs of the Hadamard transform, which are alike where it is; "" for none."""
        return "" if self.hadamard is None else self.hadamard.definition

    @property
    def device(self) -> torch.device:
        """Where codes and scales are."""
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and tensor scale."""
        return sum(part.numel() * part.element_size() for part in self.parts())

    @property
    def bits_per_value(self) -> float:
        """Memory of one value, scales included; NaN for an empty tensor.

        Codes of 6 bits lie in bytes here; `format.bits_per_value` is what the format needs.
        """
        return 8 * self.nbytes / self.shape.numel() if self.shape.numel() else float("nan")

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """Codes, scales, tensor scale."""
        return self.codes, self.scales, self.tensor_scale

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The values, in the logical shape (computed in float32, then rounded to dtype).

        What was transformed before it was quantized stays transformed.

        Raises:
            InputError: dtype is not a floating-point one.
        """
        check_result(dtype, "values")
        how = (self.format.definition, self.matrix_shape[1], dtype)
        matrix: Tensor = ops.dequantize(*self.parts(), *how)
        if self.axis == -2:
            matrix = matrix.t()
        return matrix.reshape(self.shape)

    def to(self, device: torch.device | str) -> QuantizedTensor:
        """On another device; parts that are there already are shared."""
        if isinstance(device, torch.dtype):
            raise InputError(f"device={device} is a dtype; dequantize(dtype) gives values in one")
        codes, scales, outer = (part.to(device) for part in self.parts())
        return dataclasses.replace(self, codes=codes, scales=scales, tensor_scale=outer)

    def __getitem__(self, index: object) -> QuantizedTensor:
        raise InputError(
            "a QuantizedTensor cannot be indexed, for elements share bytes and scales; index its "
            "values: q.dequantize()[...]"
        )

    def equal(self, other: QuantizedTensor) -> bool:
        """Whether both hold the same bits, format, shape and transform."""
        expect("other", other, QuantizedTensor, "compare values by dequantize()")
        return self.is_like(other) and all(
            a.dtype == b.dtype and a.shape == b.shape and _same_bytes(a, b)
            for a, b in zip(self.parts(), other.parts(), strict=True)
        )

    def is_like(self, other: QuantizedTensor) -> bool:
        """Whether both have the same format, shape, axis and transform."""
        mine, theirs = ((q.format, q.shape, q.axis, q.transform) for q in (self, other))
        return mine == theirs

    def __repr__(self) -> str:
        size = "x".join(map(str, self.shape))
        along = "" if self.axis == -1 else ", blocks along dim -2"
        if self.hadamard is not None:
            along += f", after a Hadamard transform of {self.hadamard.size}"
        outer = ""
        if self.tensor_scale.numel() == 1 and self.tensor_scale.device.type != "meta":
            outer = f", {self.format.direction.words} {self.tensor_scale.item():.4g}"
        bits = f"{self.bits_per_value:.2f} bits a value"
        if self.format.element.bits not in (4, 8, 16):
            bits += " in memory"
        return f"QuantizedTensor({self.format.name} {size}{along}, {bits}{outer}, {self.device})"


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    a, b = (part.clone(memory_format=torch.contiguous_format) for part in (a, b))
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
