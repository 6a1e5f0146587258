"""Quantization of a matrix by any block format: the definition that faster versions equal.

Letters: M x K the matrix (rows, columns; blocks run along K); R x C its blocks, of r x c elements
each. Inside, a matrix is held as `[R, r, C, c]`, a view of it as it is stored (also when it is
quantized transposed: elementwise work keeps strides, so nothing is copied), and block scales as
`[R, 1, C, 1]`.

Ragged edges are padded with zeros to whole blocks and cropped again: a padded element never raises
an amax and decodes to 0. Empty matrices give empty results with amax 0.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fp4lab.errors import InputError
from fp4lab.formats import WHOLE, BlockFormat, Direction, ElementType, Hadamard, Level, Zeros
from fp4lab.kernels.hadamard.reference import hadamard
from fp4lab.kernels.layout.reference import pack_nibbles, unpack_nibbles
from fp4lab.kernels.minifloat.reference import (
    decode,
    encode,
    positive_nan_,
)
from fp4lab.kernels.philox.reference import random_bits
from fp4lab.kernels.quantize.elements import rounded, scaled_and_rounded
from fp4lab.kernels.quantize.scales import decoded, stored, tensor_scale


class Noise(NamedTuple):
    """Where stochastic rounding takes its bits from (see `fp4lab.kernels.philox.reference`)."""

    state: Tensor
    stream: int
    bits: int
    row_ids: Tensor | None = None
    column_offset: int = 0


class Result(IntEnum):
    """What becomes of an element value; C and Triton know them by their numbers."""

    ELEMENTS = 0
    #: times its block scale
    OPERAND = 1
    #: times all scales
    DEQUANTIZED = 2
    #: its code, with block scales beside
    CODES = 3
    #: nothing: only the second-level amax is found
    NOTHING = 4


class Quantization(NamedTuple):
    """What is asked for; the fields are explained in `fp4lab.kernels.schema`."""

    x_MK: Tensor
    format: BlockFormat
    transposed: bool = False
    hadamard: Hadamard | None = None
    noise: Noise | None = None
    amax: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the operand (blocks run along its columns)."""
        rows, columns = self.x_MK.shape
        return (columns, rows) if self.transposed else (rows, columns)

    @property
    def hadamard_size(self) -> int:
        """How many numbers along the columns are transformed together; 1 without a transform."""
        return 1 if self.hadamard is None else self.hadamard.size


class Encoded(NamedTuple):
    """A matrix on its grid: float32 element values and block scales, and the second level."""

    values_RrCc: Tensor
    decode_R1C1: Tensor | None
    #: as it is stored: in the direction of the format
    tensor_scale: Tensor


def prepare(asked: Quantization) -> Tensor:
    """The operand: x or its transpose, Hadamard in x's dtype, then float32."""
    x_MK = asked.x_MK
    if asked.hadamard is not None:
        x_MK = hadamard(x_MK, asked.hadamard, dim=0 if asked.transposed else 1)
    return (x_MK.t() if asked.transposed else x_MK).to(torch.float32)


def block_sides(fmt: BlockFormat, num_rows: int, num_columns: int) -> tuple[int, int]:
    """Rows and columns of a block, the whole extent filled in (at least 1)."""
    rows, columns = fmt.block or (1, 1)
    return rows or max(num_rows, 1), columns or max(num_columns, 1)


def scale_grid(fmt: BlockFormat, num_rows: int, num_columns: int) -> tuple[int, int]:
    """Rows and columns of the block scales."""
    rows, columns = block_sides(fmt, num_rows, num_columns)
    return -(-num_rows // rows), -(-num_columns // columns)


def codes_shape(fmt: BlockFormat, num_rows: int, num_columns: int) -> tuple[int, int]:
    """Of the stored codes, two to a byte where they have 4 bits."""
    return num_rows, (num_columns + 1) // 2 if fmt.packed else num_columns


def scales_shape(fmt: BlockFormat, num_rows: int, num_columns: int) -> tuple[int, int]:
    """Of the stored block scales; `[0, 0]` for a plain cast."""
    return (0, 0) if fmt.scale is None else scale_grid(fmt, num_rows, num_columns)


def scales_dtype(fmt: BlockFormat) -> torch.dtype:
    """What block scales are stored as."""
    return torch.float32 if fmt.scale is None else code_dtype(fmt.scale)


def amax_shape(fmt: BlockFormat, num_rows: int) -> tuple[int]:
    """Of the second-level amax: `[1]`, `[M]` or `[0]`."""
    return ({Level.NONE: 0, Level.TENSOR: 1, Level.ROW: num_rows}[fmt.level],)


def check_amax(amax: Tensor, fmt: BlockFormat, num_rows: int) -> None:
    """InputError unless it has the shape that the format's second level has."""
    shape = amax_shape(fmt, num_rows)
    if amax.shape != shape:
        raise InputError(
            f"amax of shape {tuple(amax.shape)}: this format needs {shape} for {num_rows} rows"
        )


def epilogue_shape(fmt: BlockFormat, num_rows: int) -> tuple[int, ...]:
    """Of what `operand` leaves for the epilogue: `[1]`, `[M, 1]` or `[0]`."""
    if fmt.level == Level.ROW or (fmt.whole_rows and fmt.block == (1, WHOLE)):
        return (num_rows, 1)
    return (1,) if fmt.level == Level.TENSOR or fmt.whole_rows else (0,)


def code_dtype(element: ElementType) -> torch.dtype:
    """What codes, or scales, of a type are stored as."""
    if element.bits > 16:
        return torch.float32
    return torch.uint8 if element.bits <= 8 else torch.int16


def blocked(x_MK: Tensor, fmt: BlockFormat) -> Tensor:
    """The matrix as `[R, r, C, c]`, padded with zeros to whole blocks."""
    rows, columns = block_sides(fmt, *x_MK.shape)
    pad_rows, pad_columns = -x_MK.shape[0] % rows, -x_MK.shape[1] % columns
    if pad_rows or pad_columns:
        x_MK = F.pad(x_MK, (0, pad_columns, 0, pad_rows))
    grid = (x_MK.shape[0] // rows, x_MK.shape[1] // columns)
    return x_MK.reshape(grid[0], rows, grid[1], columns)


def unblocked(x_RrCc: Tensor, shape: tuple[int, int]) -> Tensor:
    """Inverse of `blocked`: the matrix of this shape."""
    return x_RrCc.flatten(2, 3).flatten(0, 1)[: shape[0], : shape[1]]


def amax_of_blocks(x_RrCc: Tensor) -> Tensor:
    """The largest magnitude of every block, `[R, 1, C, 1]`; NaN where there is one, 0 if empty."""
    amax = x_RrCc.abs()
    for dim in (3, 1):
        # halving is several times faster than a reduction over so few elements
        while (extent := amax.shape[dim]) > 1 and extent % 2 == 0:
            amax = torch.maximum(*amax.chunk(2, dim))
        if extent > 1:
            amax = amax.amax(dim=dim, keepdim=True)
    return amax


def tensor_amax(block_amax_R1C1: Tensor, fmt: BlockFormat) -> Tensor:
    """Second-level amax: `[1]`, `[M]` or `[0]` by the format's level; 0 where there is nothing."""
    if fmt.level == Level.NONE:
        return block_amax_R1C1.new_zeros(0)
    if block_amax_R1C1.numel() == 0:
        return block_amax_R1C1.new_zeros(block_amax_R1C1.shape[0] if fmt.level == Level.ROW else 1)
    dims = (1, 2, 3) if fmt.level == Level.ROW else (0, 1, 2, 3)
    return block_amax_R1C1.amax(dim=dims).reshape(-1)


def quantize_blocks(
    x_MK: Tensor, fmt: BlockFormat, *, amax: Tensor | None = None, noise_MK: Tensor | None = None
) -> Encoded:
    """Scale and round a float32 matrix.

    Args:
        x_MK: float32 `[M, K]`.
        fmt: the format.
        amax: second-level amax to use instead of the matrix's own (`[1]` or `[M]`).
        noise_MK: integers for stochastic rounding (8 bits if uint8, else 32), or None for nearest.
    """
    x_RrCc = blocked(x_MK, fmt)
    noise = None if noise_MK is None else blocked(noise_MK, fmt)
    if fmt.block is None:
        return Encoded(rounded(x_RrCc, fmt, noise), None, x_MK.new_zeros(0))
    block_amax = amax_of_blocks(x_RrCc)
    if amax is None:
        amax = tensor_amax(block_amax, fmt)
    stored_outer = positive_nan_(tensor_scale(amax.to(torch.float32, copy=True), fmt))
    outer = stored_outer.view(-1, 1, 1, 1) if fmt.level != Level.NONE else x_MK.new_ones(())
    values, decode_R1C1 = scaled_and_rounded(x_RrCc, block_amax, outer, fmt, noise)
    return Encoded(values, positive_nan_(decode_R1C1), stored_outer)


def draw(asked: Quantization) -> Tensor | None:
    """The noise of the stored matrix, turned as the operand is; None for nearest rounding."""
    noise = asked.noise
    if noise is None:
        return None
    (rows, columns), device = asked.x_MK.shape, asked.x_MK.device
    random = random_bits(
        rows,
        columns,
        noise.state.to(device),
        stream=noise.stream,
        bits=noise.bits,
        row_ids=None if noise.row_ids is None else noise.row_ids.to(device),
        column_offset=noise.column_offset,
    )
    return random.t() if asked.transposed else random


def encoded(asked: Quantization) -> Encoded:
    """All steps for an operand."""
    return quantize_blocks(prepare(asked), asked.format, amax=asked.amax, noise_MK=draw(asked))


def codes_and_scales(quantized: Encoded, fmt: BlockFormat, shape: tuple[int, int]) -> list[Tensor]:
    """What is stored: codes `[M, K]` (4-bit ones packed), scales `[R, C]`, tensor scale."""
    values = positive_nan_(unblocked(quantized.values_RrCc, shape)).contiguous()
    codes = encode(values, fmt.element)
    if fmt.packed:
        codes = pack_nibbles(codes)
    if quantized.decode_R1C1 is None:
        return [codes, quantized.values_RrCc.new_zeros((0, 0)), quantized.tensor_scale]
    scales = quantized.decode_R1C1[:, 0, :, 0].contiguous()
    return [codes, stored(scales, fmt), quantized.tensor_scale]


def from_storage(
    codes: Tensor, scales: Tensor, tensor_scale: Tensor, fmt: BlockFormat, num_columns: int
) -> Encoded:
    """Inverse of `codes_and_scales`."""
    codes_MK = unpack_nibbles(codes, num_columns) if fmt.packed else codes
    values = blocked(decode(codes_MK, fmt.element), fmt)
    if fmt.scale is None:
        return Encoded(values, None, tensor_scale)
    plain = scales if fmt.scale.mantissa_bits == 23 else decode(scales, fmt.scale)
    return Encoded(values, plain[:, None, :, None], tensor_scale)


def dequantized(quantized: Encoded, fmt: BlockFormat, shape: tuple[int, int]) -> Tensor:
    """float32: element * ((block scale * amax) * fl(1/(C*M))); one level: element * scale.

    Where the second level stores D or S: element * (block scale * D), element * (block scale / S);
    FOUROVERSIX: ((element * block scale) * amax) / (C*M).
    """
    values, scale = quantized.values_RrCc, quantized.decode_R1C1
    if scale is not None:
        if fmt.zeros in (Zeros.POSITIVE, Zeros.DECODED_POSITIVE):
            values = values + 0.0
        values = decoded(values, scale, quantized.tensor_scale.view(-1, 1, 1, 1), fmt)
    return positive_nan_(unblocked(values, shape))


def operand(quantized: Encoded, fmt: BlockFormat, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """A GEMM operand: element * block scale, and what is left for the epilogue.

    The second level, or a single scale that covers whole rows, does not enter the
    product: the operand then has at most 6 significant bits for NVFP4 and is exact in bf16.
    """
    values, scale = quantized.values_RrCc, quantized.decode_R1C1
    if scale is None:
        return positive_nan_(unblocked(values, shape)), values.new_zeros(0)
    if not fmt.whole_rows:
        values = values * scale
    values = positive_nan_(unblocked(values, shape))
    return values, epilogue(scale[:, 0, :, 0], quantized.tensor_scale, fmt, shape[0])


def epilogue(decode_RC: Tensor, tensor_scale: Tensor, fmt: BlockFormat, num_rows: int) -> Tensor:
    """What multiplies a product after the fact: `[1]`, `[M, 1]` or empty.

    It is the amax, whose C M divides later; D; or 1 / S.
    """
    if fmt.whole_rows:
        sides = (num_rows, 1) if fmt.block == (1, WHOLE) else (1,)
        # an empty matrix has no scale, its product does
        return decode_RC.reshape(sides) if decode_RC.numel() else decode_RC.new_ones(sides)
    if fmt.direction == Direction.ENCODE:
        tensor_scale = tensor_scale.reciprocal()
    return tensor_scale.view(-1, 1) if fmt.level == Level.ROW else tensor_scale
