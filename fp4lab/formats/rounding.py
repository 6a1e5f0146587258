"""How a value between two representable numbers is rounded.

`Ties` belongs to a format (tools differ in it); `Rounding` is chosen per tensor by a recipe.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class Ties(IntEnum):
    """Where round-to-nearest puts a value exactly halfway between two neighbours.

    Members:
        EVEN: to the neighbour whose last digit is even; between two powers of two, which have
            no other digit, to the larger (IEEE 754; hardware `cvt.rn`)
        AWAY: to the larger magnitude (microxcaling "nearest")
        ZERO: to the smaller magnitude (ggml, qwantize)

    >>> import torch, fp4lab
    >>> x = torch.tensor([1.75, 2.5])
    >>> [fp4lab.cast(x, fp4lab.formats.E2M1, ties=ties).tolist() for ties in Ties]
    [[2.0, 2.0], [2.0, 3.0], [1.5, 2.0]]
    """

    EVEN = 0
    AWAY = 1
    ZERO = 2


class Zeros(IntEnum):
    """The sign of numbers that become zero, in which tools differ; values differ in no other way.

    Members:
        SIGNED: what rounds to zero keeps its sign; an input -0 is as the format's
            `keep_negative_zero` says
        DECODED_POSITIVE: the same codes, but the code of -0 stands for +0 (ModelOpt NVFP4)
        POSITIVE: no number gets the code of -0, which stands for +0 (ggml)
        NEGATIVE: zeros of the input get the code of -0, small numbers keep their sign (ModelOpt
            MXFP4)

    >>> import torch, fp4lab
    >>> x = torch.tensor([6.0, 0.0, -0.0, -0.1] * 8)
    >>> formats = [fp4lab.formats.MXFP4.replace(zeros=zeros) for zeros in Zeros]
    >>> [fp4lab.fake_quantize(x, fmt)[1:4].signbit().int().tolist() for fmt in formats]
    [[0, 1, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1]]
    """

    SIGNED = 0
    DECODED_POSITIVE = 1
    POSITIVE = 2
    NEGATIVE = 3


class Overflow(IntEnum):
    """What a magnitude beyond the largest finite number becomes. NaN stays NaN either way.

    Members:
        SATURATE: the largest finite number, infinity included (satfinite)
        SPECIAL: infinity where the type has one, else NaN (IEEE 754, ml_dtypes); saturates
            without either

    >>> import torch, fp4lab
    >>> x = torch.tensor([1e9])
    >>> [fp4lab.cast(x, fp4lab.formats.E5M2, overflow=overflow).item() for overflow in Overflow]
    [57344.0, inf]
    """

    SATURATE = 0
    SPECIAL = 1


class Rounding(Enum):
    """How a tensor's elements are rounded to the grid.

    Stochastic rounding takes a value with fraction `f` of the way to the next magnitude up with
    probability `floor(2^bits * f) / 2^bits`: `STOCHASTIC_8` is what Blackwell's `cvt.rs` does with
    8 random bits an element (a bias toward zero of at most 1/256 of a step, half that on average),
    `STOCHASTIC_32` is unbiased to 2^-32.

    >>> import torch, fp4lab
    >>> x, noise = torch.full((64, 64), 1 + 2**-9), fp4lab.noise_state(0)
    >>> how = {"rounding": Rounding.STOCHASTIC_8, "noise": noise}
    >>> q = fp4lab.fake_quantize(x, fp4lab.formats.BF16, **how)  # 1/4 of the way up
    >>> q.unique().tolist(), round((q > 1).float().mean().item(), 2)
    ([1.0, 1.0078125], 0.25)
    """

    NEAREST = "nearest"
    STOCHASTIC_8 = "stochastic8"
    STOCHASTIC_32 = "stochastic32"

    @property
    def noise_bits(self) -> int:
        """Random bits an element needs: 0, 8 or 32."""
        return _NOISE_BITS[self.value]


_NOISE_BITS = {"nearest": 0, "stochastic8": 8, "stochastic32": 32}
