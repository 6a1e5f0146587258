"""How far a tensor moves when it is quantized."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fp4lab.formats import BlockFormat
from fp4lab.functional.arguments import check_space, operator_arguments
from fp4lab.functional.operations import fake_quantize, saturated


class Error(NamedTuple):
    """How far a tensor moves when it is quantized; every figure from float64 sums.

    Attributes:
        sqnr_db: 10 log10(sum x^2 / sum (q - x)^2); infinity where nothing moved.
        relative_mse: sum (q - x)^2 / sum x^2.
        cosine: <q, x> / (|q| |x|).
        gain: <q, x> / <x, x>; below 1 the tensor shrank.
        underflow: fraction of elements that were not zero and became zero.
        saturation: fraction of elements beyond the largest number of their block.
    """

    sqnr_db: float
    relative_mse: float
    cosine: float
    gain: float
    underflow: float
    saturation: float


def error(x: Tensor, fmt: BlockFormat, **how: Any) -> Error:
    """Quantization error of a tensor (see `Error`); arguments as in `quantize`.

    An all-zero or empty tensor has no error: infinite SQNR, cosine and gain 1.

    >>> from fp4lab import formats
    >>> x = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
    >>> round(error(x, formats.NVFP4).sqnr_db, 1)
    20.4
    """
    check_space(how)
    arguments = operator_arguments(x, fmt, **how)
    x_ = x.detach()
    q = fake_quantize(x_.to(torch.float32), fmt, **how)
    beyond = saturated(x_, arguments[1:]) if fmt.block is not None else torch.zeros_like(x_)
    return compare(q, x_, saturation=beyond.to(torch.float64).mean().item() if x.numel() else 0.0)


def compare(q: Tensor, x: Tensor, *, saturation: float = float("nan")) -> Error:
    """The figures of `Error` for a tensor q that stands for x."""
    if x.numel() == 0:
        return Error(float("inf"), 0.0, 1.0, 1.0, 0.0, 0.0)
    q64, x64 = q.detach().to(torch.float64), x.detach().to(torch.float64)
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
        cosine=(inner / (power * q_power).sqrt()).item() if q_power > 0 else 0.0,
        gain=(inner / power).item(),
        underflow=((q64 == 0) & (x64 != 0)).to(torch.float64).mean().item(),
        saturation=saturation,
    )
