"""What a low-precision number is: element types, block formats, scale rules, rounding modes.

Pure data and derived properties; nothing here touches a tensor.
"""

from fp4lab.formats.blocks import (
    WHOLE,
    BlockFormat,
    BlockScale,
    Level,
    ScaleRule,
    Selection,
)
from fp4lab.formats.elements import (
    BF16 as BF16_ELEMENT,
)
from fp4lab.formats.elements import (
    E1M2,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    ELEMENTS,
    FP32,
    INT4,
    UE4M3,
    UE5M3,
    ElementType,
    Specials,
)
from fp4lab.formats.elements import (
    FP16 as FP16_ELEMENT,
)
from fp4lab.formats.rounding import Overflow, Rounding, Ties
from fp4lab.formats.table import (
    BF16,
    FP8_1X128_E4M3,
    FP8_1X128_E5M2,
    FP8_128X128_E4M3,
    FP8_128X128_E5M2,
    FP8_ROW_E4M3,
    FP8_ROW_E5M2,
    FP8_TENSOR_E4M3,
    FP8_TENSOR_E5M2,
    FP16,
    MXFP4,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_E4M3,
    MXFP8_E5M2,
    NVFP4,
    NVFP4_4OVER6,
    NVFP4_4OVER6_16X16,
    NVFP4_16X16,
    NVFP4_ONE_LEVEL,
    NVFP4_ROWWISE,
    get,
    names,
    register,
)
from fp4lab.formats.transform import NVFP4_SIGNS, Hadamard

__all__ = [name for name in dir() if not name.startswith("_")]
