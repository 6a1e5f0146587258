"""What the figures draw: a type's values, its steps, and what stochastic rounding should give."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fp4lab.formats import ElementType
from fp4lab.tensor import QuantizedTensor

Values = NDArray[np.float64]


def finite_values(element: ElementType) -> Values:
    """The different finite numbers of a type of at most 8 bits, in order; +0 and -0 are one."""
    values = np.array(element.values())
    return np.unique(values[np.isfinite(values)] + 0.0)


def midpoints(element: ElementType) -> Values:
    """The numbers halfway between neighbours."""
    values = finite_values(element)
    return (values[1:] + values[:-1]) / 2


def steps(x: Values, element: ElementType) -> Values:
    """The distance between the two neighbours around each number; beyond the largest, the last."""
    magnitude = np.minimum(np.abs(x), element.max_value)
    _, exponent = np.frexp(magnitude)
    exponent = np.where(magnitude > 0, exponent - 1, element.min_exponent)
    powers = np.maximum(exponent, element.min_exponent) - element.mantissa_bits
    result: Values = np.ldexp(1.0, powers)
    return result


def stochastic_theory(x: Values, element: ElementType, bits: int) -> tuple[Values, Values]:
    """Mean and standard deviation of what stochastic rounding with so many bits gives.

    A magnitude with fraction f of a step goes up with probability `p = floor(2^bits f) / 2^bits`,
    which moves the mean by p steps and has the deviation `sqrt(p (1 - p))` steps.
    """
    step = steps(x, element)
    magnitude = np.minimum(np.abs(x), element.max_value)
    low = np.floor(magnitude / step)
    p = np.floor((magnitude / step - low) * 2.0**bits) / 2.0**bits
    return np.sign(x) * (low + p) * step, np.sqrt(p * (1 - p)) * step


def decode_scales(q: QuantizedTensor) -> Tensor:
    """What each element's code is multiplied by, float64 in q's shape; ones for a plain cast."""
    if q.format.block is None:
        return torch.ones(q.shape, dtype=torch.float64)
    # the code of 2^min_exponent, a power of two: dividing by it is exact
    code = 1 << q.format.element.mantissa_bits
    codes = torch.full_like(q.codes, code * (0x11 if q.format.packed else 1))
    ones = dataclasses.replace(q, codes=codes).dequantize()
    return ones.to(torch.float64) / q.format.element.min_normal
