"""How block scales are computed: the choices in which published tools differ.

The arithmetic, in float32 and in this order (`M` = largest element, `C` = scale cap,
`A` = amax of the tensor or row, `a` = amax of the block, `min(., FLT_MAX)` where it can overflow):

    two level   S = C*M / A  (1 where that is 0);  D = 1 / S
                s = round(a * (S * fl(1/M)))       BlockScale.FOLDED   Transformer Engine NVFP4
                s = round((a / M) * S)             BlockScale.DIVIDED  its 4-over-6 mode
                e = 1 / (s * D);                   elements are round(x * e)
    power of 2  s = 2^k by `ScaleRule`; e = 2^-k   OCP MX
    encode      e = M / a; s = 1 / e               FP8 with float32 scales (Transformer Engine)

Other tools compute in other orders, and some store another number than `A` (`Direction`). Without a
second level D and S are 1. Divisions are divisions, and nothing is limited but what is said:

    D = A / (C*M)                                  stored; D = 0 (all zero) makes 0/0 = NaN scales
                s = round((a / M) / D)             BlockScale.TORCHAO
                round(x * ((1 / D) / s)),          value  element * (s * D)
                s = round(a / (M * D))             BlockScale.MODELOPT
                round(x / (s * D)),                value  element * (s * D)
    S = (1 / A) * (C*M)  (1 where not finite)      stored
                s = round(S * (a / M))             BlockScale.COMPRESSED_TENSORS
                round(x / (s / S)),                value  element * (s / S)
    S = C*M / A;  D = 1 / S
                s = round((a / M) * S), 0 if a = 0 BlockScale.FOUROVERSIX
                round(x * (1 / (D * s))), 0 if s = 0;   value  ((element * s) * A) / (C*M)
    one level   s = a / M rounded as said below    BlockScale.GGML
                the first code with the least |element * s - x|;    value  element * s
                s = round(a / M)                   BlockScale.QWANTIZE
                round(x / s), 0 if x = 0;          value  element * s

ggml rounds a scale to E4M3 with halves up; but what would round up to 2^-6 becomes 7/8 of it, and
what rounds to 256 or more becomes 448.

A format's `zero_scale` replaces a block scale that rounds to zero (COMPRESSED_TENSORS), one that is
zero before it is rounded (MODELOPT), or that of a block of zeros (the others).

Sources: arXiv 2509.25149 section 2 and appendix; OCP MX v1.0; Transformer Engine's references;
torchao 0.18.0, nvidia-modelopt 0.47.0, compressed-tensors 0.20.1, fouroversix dadfad6, ggml d99724f
and qwantize 0.1.1 as they run.
"""

from __future__ import annotations

from enum import IntEnum


class ScaleRule(IntEnum):
    """How the ideal block scale amax/M becomes a stored one.

    All but NEAREST give powers of two. Below, `emax` is the exponent of the largest element.

    Members:
        NEAREST: to the nearest value of the scale type, halves as the format's `scale_ties`
            says
        FLOOR: 2^(floor(log2 amax) - emax): OCP MX v1.0; clips values above M (E2M1: 6 to 8
            times 2^k)
        CEIL: 2^(ceil(log2 amax) - emax)
        ROUND_UP: the smallest power of two that is at least amax/M: nothing is clipped (cuBLAS,
            2506.08027)
        EVEN: as FLOOR after amax is rounded to the element's mantissa width
        EVEN_FP4: as EVEN with E2M1's mantissa width, whatever the element (compressed-tensors'
            MXFP8)

    >>> import torch, fp4lab
    >>> formats = [fp4lab.formats.MXFP4.replace(scale_rule=rule) for rule in ScaleRule]
    >>> [fp4lab.fake_quantize(torch.full((32,), 7.0), fmt)[0].item() for fmt in formats]
    [6.0, 6.0, 8.0, 8.0, 8.0, 8.0]
    """

    NEAREST = 0
    FLOOR = 1
    CEIL = 2
    ROUND_UP = 3
    EVEN = 4
    EVEN_FP4 = 5


class BlockScale(IntEnum):
    """Order of operations by which a block scale is computed.

    `M` is the element that a block's amax maps to, `S` the second level's encode scale (1 without).

    Members:
        FOLDED: round(amax * (S * fl(1/M))), Transformer Engine's NVFP4
        DIVIDED: round((amax / M) * S), its 4-over-6 mode
        POWER_OF_TWO: 2^k by the `ScaleRule`, OCP MX
        ENCODE: the reciprocal of M / amax in float32, FP8 with float32 scales
        TORCHAO: round((amax / M) / D), elements times (1 / D) / s
        MODELOPT: round(amax / (M * D)), elements divided by s * D
        COMPRESSED_TENSORS: round(S * (amax / M)), elements divided by s / S
        FOUROVERSIX: as DIVIDED without limits; a block scale of 0 makes its codes 0
        GGML: amax / M in ggml's own rounding to E4M3, elements by the least distance; one level
        QWANTIZE: round(amax / M), elements divided by it; one level
    """

    FOLDED = 0
    DIVIDED = 1
    POWER_OF_TWO = 2
    ENCODE = 3
    TORCHAO = 4
    MODELOPT = 5
    COMPRESSED_TENSORS = 6
    FOUROVERSIX = 7
    GGML = 8
    QWANTIZE = 9


class Direction(IntEnum):
    """Which number a second level stores; tools differ, and a wrong guess is off by its square.

    Members:
        AMAX: the largest magnitude A (Transformer Engine)
        ENCODE: S = C*M / A, which multiplies what is quantized (compressed-tensors'
            `weight_global_scale`)
        DECODE: D = A / (C*M), which multiplies what is decoded (ModelOpt's `weight_scale_2`,
            torchao's `per_tensor_scale`)

    >>> import torch, fp4lab
    >>> formats = ["nvfp4", "nvfp4_compressed_tensors", "nvfp4_modelopt"]
    >>> formats = [fp4lab.formats.get(name) for name in formats]
    >>> [fp4lab.quantize(torch.full((16,), 21.0), fmt).tensor_scale.item() for fmt in formats]
    [21.0, 128.0, 0.0078125]
    """

    AMAX = 0
    ENCODE = 1
    DECODE = 2

    @property
    def part(self) -> str:
        """What the stored number is called in files and messages."""
        return "amax" if self is Direction.AMAX else f"{self.name.lower()}_scale"

    @property
    def words(self) -> str:
        """`part` in words."""
        return self.part.replace("_", " ")


class Level(IntEnum):
    """What the second-level scale covers: nothing (there is none), the tensor, or each row."""

    NONE = 0
    TENSOR = 1
    ROW = 2


class Selection(IntEnum):
    """Which error decides between the scales of a block (arXiv 2512.02010: 4-over-6).

    Members:
        NONE: every block's amax maps to the largest element
        MAE: it maps to 6 or to 4, by the smaller sum of absolute errors
        MSE: the same by the smaller sum of squared errors
        ABS_MAX: the same by the smaller largest error (fouroversix)
        SEARCH: of all block scales the one with the smallest sum of squared errors (qwantize)
    """

    NONE = 0
    MAE = 1
    MSE = 2
    ABS_MAX = 3
    SEARCH = 4
