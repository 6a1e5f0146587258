"""How far a tensor moves when it is quantized."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat, Rounding
from fp4lab.functional.arguments import Ragged, as_format, operator_arguments
from fp4lab.functional.operations import fake_quantized, saturated
from fp4lab.kernels.backends import with_denormals


class Error(NamedTuple):
    """How far a tensor moves when it is quantized; every figure from float64 sums.

    Attributes:
        sqnr_db: 10 log10(sum x^2 / sum (q - x)^2); infinity where nothing moved.
        relative_mse: sum (q - x)^2 / sum x^2.
        cosine: <q, x> / (|q| |x|).
        gain: <q, x> / <x, x>; below 1 the tensor shrank.
        underflow: fraction of the elements that were not zero which became zero.
        saturation: fraction of elements beyond the largest number of their block.
    """

    sqnr_db: float
    relative_mse: float
    cosine: float
    gain: float
    underflow: float
    saturation: float


def error(
    x: Tensor,
    fmt: BlockFormat | str,
    *,
    rounding: Rounding = Rounding.NEAREST,
    noise: Tensor | None = None,
    stream: int = 0,
    axis: int = -1,
    amax: Tensor | None = None,
    ragged: Ragged = "error",
    row_ids: Tensor | None = None,
    column_offset: int = 0,
) -> Error:
    """Quantization error of a tensor (see `Error`); arguments and errors as in `fake_quantize`.

    An all-zero or empty tensor has no error: infinite SQNR, cosine and gain 1. Where x holds NaN or
    infinity, the figures mean nothing. A plain cast has no blocks, and its saturation is 0.

    >>> x = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    >>> round(error(x, "nvfp4").sqnr_db, 1)
    20.4
    """
    fmt = as_format(fmt)
    arguments = operator_arguments(
        x,
        fmt,
        rounding=rounding,
        noise=noise,
        stream=stream,
        axis=axis,
        amax=amax,
        ragged=ragged,
        row_ids=row_ids,
        column_offset=column_offset,
    )
    x_ = x.detach()
    q = fake_quantized(x_.to(torch.float32), axis, arguments[1:])
    if fmt.block is None or x.numel() == 0:
        return compare(q, x_, saturation=0.0)
    beyond = saturated(x_, fmt, axis, arguments[1:])
    return compare(q, x_, saturation=beyond.to(torch.float64).mean().item())


def compare(q: Tensor, x: Tensor, *, saturation: float = float("nan")) -> Error:
    """The figures of `Error` for a tensor q that stands for x.

    Args:
        q: any shape and dtype.
        x: of the same shape. All zeros: the SQNR is infinite where q is zero too, else -infinity.
            Empty: no error. NaN or infinity: the figures mean nothing.
        saturation: passed on; it cannot be seen from the two tensors.

    Returns:
        the figures, from float64.

    Raises:
        InputError: q and x differ in shape.

    >>> figures = compare(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0]))
    >>> figures.gain, figures.underflow
    (0.5, 0.5)
    """
    if q.shape != x.shape:
        raise InputError(f"q of shape {tuple(q.shape)} and x of {tuple(x.shape)} should be alike")
    return _figures(q, x, saturation)


@with_denormals
def _figures(q: Tensor, x: Tensor, saturation: float) -> Error:
    if x.numel() == 0:
        return Error(float("inf"), 0.0, 1.0, 1.0, 0.0, 0.0)
    q64, x64 = q.detach().to(torch.float64), x.detach().to(torch.float64)
    # squares of what is tiny or huge in float64 would vanish or overflow
    largest = torch.maximum(q64.abs().max(), x64.abs().max())
    if largest > 0 and largest.isfinite():
        _, exponent = torch.frexp(largest)
        q64, x64 = torch.ldexp(q64, -exponent), torch.ldexp(x64, -exponent)
    power, noise = x64.square().sum(), (q64 - x64).square().sum()
    inner, q_power = (q64 * x64).sum(), q64.square().sum()
    if power == 0:
        exact = bool(noise == 0)
        return Error(
            float("inf") if exact else float("-inf"),
            0.0 if exact else float("inf"),
            1.0 if exact else 0.0,
            1.0,
            0.0,
            saturation,
        )
    ratio = noise / power
    return Error(
        sqnr_db=(-10 * ratio.log10()).item(),
        relative_mse=ratio.item(),
        cosine=(inner / (power * q_power).sqrt()).item() if q_power != 0 else 0.0,
        gain=(inner / power).item(),
        underflow=(q64[x64 != 0] == 0).to(torch.float64).mean().item(),
        saturation=saturation,
    )
