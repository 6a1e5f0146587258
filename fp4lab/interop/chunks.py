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
from fp4lab.functional import Error
from fp4lab.functional.arguments import operator_arguments
from fp4lab.functional.operations import fake_quantized, saturated
from fp4lab.kernels.backends import with_denormals
from fp4lab.tensor import QuantizedTensor

#: values that are quantized at once
VALUES = 1 << 17
NAN = float("nan")


def row_chunks(
    x: Tensor, fmt: BlockFormat | None = None, *, dtype: torch.dtype = torch.float32
) -> Iterator[Tensor]:
    """The rows `[M, K]` of a tensor, some at a time, tiles of the format whole."""
    matrix = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
    num_rows, columns = matrix.shape
    side = 1 if fmt is None or fmt.block is None else fmt.block[0]
    step = max(VALUES // max(columns, 1) // max(side, 1), 1) * max(side, 1)
    if side == WHOLE and fmt is not None and fmt.block is not None:
        step = num_rows
    for row in range(0, num_rows, max(step, 1)):
        yield matrix[row : row + step].to(dtype)


def largest(x: Tensor) -> float:
    """max |x| (NaN where there is one), without a copy; 0 where there is nothing."""
    if x.numel() == 0:
        return 0.0
    low, high = torch.aminmax(x)
    # 0 has no sign
    return abs(max(-float(low), float(high))) if not bool(low.isnan()) else NAN


def quantized(x: Tensor, fmt: BlockFormat, amax: float) -> Iterator[tuple[QuantizedTensor, Tensor]]:
    """Quantize `[M, K]`: some rows of the result at a time, with what they were in float32.

    Together they are `fp4lab.quantize(x.float(), fmt, amax=amax)`, bit for bit.
    """
    outer = torch.tensor([amax]) if fmt.level == Level.TENSOR else None
    for chunk in row_chunks(x, fmt):
        yield functional.quantize(chunk, fmt, amax=outer), chunk


@dataclass
class Figures:
    """`fp4lab.error` of a tensor from sums over its parts, in float64."""

    power: float = 0.0
    noise: float = 0.0
    inner: float = 0.0
    q_power: float = 0.0
    vanished: int = 0
    saturated: int = 0
    nonzero: int = 0
    count: int = 0

    def add(self, x: Tensor, q: Tensor, *, saturated: int = 0) -> None:
        """Count a part in: x and what became of it, both in float32."""
        sums = _sums(x, q)
        self.power += sums[0]
        self.noise += sums[1]
        self.inner += sums[2]
        self.q_power += sums[3]
        self.nonzero += int(torch.count_nonzero(x))
        self.vanished += int(((q == 0) & (x != 0)).sum())
        self.saturated += saturated
        self.count += x.numel()

    def join(self, other: Figures) -> None:
        """Count another tensor in."""
        for each in dataclasses.fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def error(self) -> Error:
        """The figures of all that was added; no error where there was nothing."""
        if self.count == 0:
            return Error(float("inf"), 0.0, 1.0, 1.0, 0.0, 0.0)
        saturation = self.saturated / self.count
        if self.power == 0:
            if self.noise == 0:
                return Error(float("inf"), 0.0, 1.0, 1.0, 0.0, saturation)
            return Error(float("-inf"), float("inf"), 0.0, 1.0, 0.0, saturation)
        ratio = self.noise / self.power
        sqnr = math.inf if ratio == 0 else -10 * math.log10(ratio)
        norm = math.sqrt(self.power) * math.sqrt(self.q_power)
        return Error(
            sqnr_db=sqnr,
            relative_mse=ratio,
            cosine=self.inner / norm if norm else 0.0,
            gain=self.inner / self.power,
            underflow=self.vanished / self.nonzero if self.nonzero else 0.0,
            saturation=saturation,
        )


@with_denormals
def _sums(x: Tensor, q: Tensor) -> tuple[float, float, float, float]:
    """Power, noise, inner product and power of q. No square of a float32 leaves float64."""
    x64, q64 = x.to(torch.float64), q.to(torch.float64)
    sums = (x64.square(), (q64 - x64).square(), q64 * x64, q64.square())
    power, noise, inner, q_power = (float(each.sum()) for each in sums)
    return power, noise, inner, q_power


def error_of(x: Tensor, fmt: BlockFormat, amax: float) -> Error:
    """`fp4lab.error(x, fmt)` some rows at a time; incomplete blocks are padded."""
    outer = torch.tensor([amax]) if fmt.level == Level.TENSOR else None
    figures = Figures()
    for chunk in row_chunks(x, fmt):
        arguments = operator_arguments(chunk, fmt, amax=outer, ragged="pad")[1:]
        beyond = 0 if fmt.block is None else int(saturated(chunk, fmt, -1, arguments).sum())
        figures.add(chunk, fake_quantized(chunk, -1, arguments), saturated=beyond)
    return figures.error()


@dataclass(frozen=True)
class Spread:
    """Of a tensor's values: amax, amax over root mean square, and kurtosis (3 for a Gaussian)."""

    amax: float
    amax_over_rms: float
    kurtosis: float


@with_denormals
def spread(x: Tensor) -> Spread:
    """Figures of the values in float64; NaN where they are not defined (all equal, or NaN)."""
    amax, count = largest(x), x.numel()
    if count == 0:
        return Spread(0.0, NAN, NAN)
    # the fourth power of a tiny or huge float64 is none
    _, exponent = math.frexp(amax)
    total = square = 0.0
    for chunk in row_chunks(x, dtype=torch.float64):
        wide = torch.ldexp(chunk, torch.tensor(-exponent))
        total += float(wide.sum())
        square += float(wide.square().sum())
    mean, rms = total / count, math.sqrt(square / count)
    second = fourth = 0.0
    for chunk in row_chunks(x, dtype=torch.float64):
        squares = (torch.ldexp(chunk, torch.tensor(-exponent)) - mean).square()
        second += float(squares.sum())
        fourth += float(squares.square().sum())
    return Spread(
        amax,
        math.ldexp(amax, -exponent) / rms if rms else NAN,
        count * fourth / second**2 if second and math.isfinite(second) else NAN,
    )
