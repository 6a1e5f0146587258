"""Large tensors some rows at a time, with the bits and figures of the whole."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fp4lab import functional
from fp4lab.formats import WHOLE, BlockFormat, Level
from fp4lab.functional import Error, compare
from fp4lab.tensor import QuantizedTensor

#: values that are quantized at once
VALUES = 1 << 17
NAN = float("nan")


def row_chunks(x: Tensor, fmt: BlockFormat | None = None) -> Iterator[Tensor]:
    """The rows `[M, K]` of a tensor in float32, some at a time, tiles of the format whole."""
    matrix = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
    num_rows, columns = matrix.shape
    side = 1 if fmt is None or fmt.block is None else fmt.block[0]
    step = max(VALUES // max(columns, 1) // max(side, 1), 1) * max(side, 1)
    if side == WHOLE and fmt is not None and fmt.block is not None:
        step = num_rows
    for row in range(0, num_rows, max(step, 1)):
        yield matrix[row : row + step].to(torch.float32)


def largest(x: Tensor) -> float:
    """max |x| (NaN where there is one), without a copy; 0 where there is nothing."""
    if x.numel() == 0:
        return 0.0
    low, high = torch.aminmax(x)
    return max(-float(low), float(high)) if not bool(low.isnan()) else NAN


def quantized(x: Tensor, fmt: BlockFormat, amax: float) -> Iterator[tuple[QuantizedTensor, Tensor]]:
    """Quantize `[M, K]`: some rows of the result at a time, with what they were in float32.

    Together they are `fp4lab.quantize(x.float(), fmt, amax=amax)`, bit for bit.
    """
    outer = torch.tensor([amax]) if fmt.level == Level.TENSOR else None
    for chunk in row_chunks(x, fmt):
        yield functional.quantize(chunk, fmt, amax=outer), chunk


@dataclass
class Figures:
    """`fp4lab.error` of a tensor from those of its parts, in float64."""

    power: float = 0.0
    noise: float = 0.0
    inner: float = 0.0
    q_power: float = 0.0
    vanished: float = 0.0
    saturated: float = 0.0
    nonzero: int = 0
    count: int = 0

    def add(self, x: Tensor, error: Error) -> None:
        """Count a part in: x in float32, and its error."""
        x64 = x.to(torch.float64)
        power, nonzero = float(x64.square().sum()), int(torch.count_nonzero(x))
        self.count += x.numel()
        self.nonzero += nonzero
        self.vanished += error.underflow * nonzero
        self.saturated += error.saturation * x.numel()
        if power == 0:
            return
        self.power += power
        self.noise += error.relative_mse * power
        inner = error.gain * power
        self.inner += inner
        if error.cosine:
            self.q_power += (inner / error.cosine) ** 2 / power

    def join(self, other: Figures) -> None:
        """Count another tensor in."""
        for each in dataclasses.fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def error(self) -> Error:
        """The figures of all that was added; no error where there was nothing."""
        if self.power == 0 or self.count == 0:
            return Error(float("inf"), 0.0, 1.0, 1.0, 0.0, 0.0)
        ratio = self.noise / self.power
        sqnr = math.inf if ratio == 0 else -10 * math.log10(ratio)
        norm = math.sqrt(self.power) * math.sqrt(self.q_power)
        return Error(
            sqnr_db=sqnr,
            relative_mse=ratio,
            cosine=self.inner / norm if norm else 0.0,
            gain=self.inner / self.power,
            underflow=self.vanished / self.nonzero if self.nonzero else 0.0,
            saturation=self.saturated / self.count,
        )


def error_of(x: Tensor, fmt: BlockFormat, amax: float) -> Error:
    """`fp4lab.error(x, fmt)` some rows at a time; incomplete blocks are padded."""
    outer = torch.tensor([amax]) if fmt.level == Level.TENSOR else None
    figures = Figures()
    for chunk in row_chunks(x, fmt):
        figures.add(chunk, functional.error(chunk, fmt, amax=outer, ragged="pad"))
    return figures.error()


def compared(q: QuantizedTensor, x: Tensor) -> Error:
    """The error of some rows that were quantized; their saturation is not known."""
    return compare(q.dequantize(), x, saturation=0.0)


@dataclass(frozen=True)
class Spread:
    """Of a tensor's values: amax, amax over root mean square, and kurtosis (3 for a Gaussian)."""

    amax: float
    amax_over_rms: float
    kurtosis: float


def spread(x: Tensor) -> Spread:
    """Figures of the values in float64; NaN where they are not defined (all equal, or NaN)."""
    amax, count = largest(x), x.numel()
    if count == 0:
        return Spread(0.0, NAN, NAN)
    total = square = 0.0
    for chunk in row_chunks(x):
        wide = chunk.to(torch.float64)
        total += float(wide.sum())
        square += float(wide.square().sum())
    mean, rms = total / count, math.sqrt(square / count)
    second = fourth = 0.0
    for chunk in row_chunks(x):
        squares = (chunk.to(torch.float64) - mean).square()
        second += float(squares.sum())
        fourth += float(squares.square().sum())
    return Spread(
        amax,
        amax / rms if rms else NAN,
        count * fourth / second**2 if second and math.isfinite(second) else NAN,
    )
