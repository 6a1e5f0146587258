"""Rounding stated a second time, from the definition, in float64 and integers.

Nothing here uses fp4lab's kernels: numbers of a type are found by dividing by the spacing of the
binade, which float64 does exactly for every float32, and comparing the rest with one half.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fp4lab.formats import ElementType, Overflow, Specials, Ties

F64 = NDArray[np.float64]


def spacing(a: F64, element: ElementType) -> F64:
    """Distance of the two neighbours around each a >= 0, as if the type had no largest number."""
    _, exponent = np.frexp(a)
    lowest = 1 - element.bias
    return np.ldexp(1.0, np.maximum(exponent - 1, lowest) - element.mantissa_bits)


def largest(element: ElementType) -> float:
    """The largest finite number, by listing the top codes from above."""
    for code in range((1 << (element.exponent_bits + element.mantissa_bits)) - 1, 0, -1):
        exponent, mantissa = divmod(code, 1 << element.mantissa_bits)
        top = exponent == (1 << element.exponent_bits) - 1
        if element.specials == Specials.IEEE and top:
            continue
        if (
            element.specials == Specials.NAN
            and top
            and mantissa == (1 << element.mantissa_bits) - 1
        ):
            continue
        fraction = mantissa / (1 << element.mantissa_bits)
        if exponent == 0:
            return fraction * 2.0 ** (1 - element.bias)
        return (1 + fraction) * 2.0 ** (exponent - element.bias)
    raise AssertionError(element)


def finish(x: F64, q: F64, element: ElementType, overflow: Overflow) -> F64:
    """Sign, overflow and NaN for magnitudes q that x was rounded to."""
    top = largest(element)
    special = {Specials.NONE: top, Specials.NAN: np.nan, Specials.IEEE: np.inf}[element.specials]
    q = np.where(q > top, top if overflow == Overflow.SATURATE else special, q)
    return np.copysign(np.where(np.isnan(x), np.nan, q), x)


def split(x: F64, element: ElementType) -> tuple[F64, F64, F64]:
    """Lower neighbour in steps, the rest in [0, 1), and the step, of |x|."""
    a = np.abs(np.where(np.isfinite(x), x, 2.0 * largest(element)))
    step = spacing(a, element)
    return np.floor(a / step), a / step - np.floor(a / step), step


def nearest(x: F64, element: ElementType, ties: Ties, overflow: Overflow) -> F64:
    """Round to the nearest, halves by `ties`."""
    whole, rest, step = split(x, element)
    half = {Ties.EVEN: whole % 2 == 1, Ties.AWAY: True, Ties.ZERO: False}[ties]
    return finish(x, (whole + ((rest > 0.5) | ((rest == 0.5) & half))) * step, element, overflow)


def threshold(x: F64, element: ElementType, bits: int) -> NDArray[np.int64]:
    """floor(2^bits f): of the 2^bits random integers so many round x up."""
    _, rest, _ = split(x, element)
    return np.floor(rest * 2.0**bits).astype(np.int64)


def stochastic(
    x: F64, element: ElementType, random: NDArray[np.int64], bits: int, overflow: Overflow
) -> F64:
    """Round up where `random` is among the last floor(2^bits f) of 2^bits integers."""
    whole, _, step = split(x, element)
    up = random >= 2**bits - threshold(x, element, bits)
    return finish(x, (whole + up) * step, element, overflow)
