"""The named formats and the table that files and the command line look names up in."""

from __future__ import annotations

import re

from fp4lab.errors import InputError, unknown
from fp4lab.formats import elements as e
from fp4lab.formats.blocks import WHOLE, BlockFormat
from fp4lab.formats.rounding import Overflow, Ties, Zeros
from fp4lab.formats.scaling import BlockScale, Level, ScaleRule, Selection

_FORMATS: dict[str, BlockFormat] = {}
_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


def register(fmt: BlockFormat) -> BlockFormat:
    """Make a format known by its name, for files and the command line; returns what is known.

    Raises:
        InputError: a name with other characters than letters, digits and _ (a recipe's name may
            begin with it, and go on with - and +), or one that is taken by a format with other
            fields.

    >>> mine = register(NVFP4.replace(name="nvfp4_1x32", block=(1, 32)))
    >>> get("nvfp4_1x32") is mine
    True
    """
    if not _NAME.fullmatch(fmt.name):
        raise InputError(
            f"name={fmt.name!r} of a format to register may hold letters, digits and _; change it "
            "by fmt.replace(name=...)"
        )
    known = _FORMATS.setdefault(fmt.name, fmt)
    if known != fmt:
        raise InputError(
            f"name={fmt.name!r} is taken by a format with other fields; choose another name"
        )
    return known


def get(name: str) -> BlockFormat:
    """The registered format of this name; an unknown name is an InputError with a suggestion.

    >>> get("mxfp8_e4m3_floor").scale_rule
    <ScaleRule.FLOOR: 1>
    """
    try:
        return _FORMATS[name]
    except KeyError:
        raise unknown("format", name, _FORMATS) from None


def names() -> list[str]:
    """Names of all registered formats, sorted.

    >>> [name for name in names() if name.startswith("mxfp4_")]
    ['mxfp4_32x32', 'mxfp4_ceil', 'mxfp4_compressed_tensors', 'mxfp4_even', 'mxfp4_floor', ...]
    """
    return sorted(_FORMATS)


def _nvfp4(name: str, block: tuple[int, int], level: Level) -> BlockFormat:
    return register(BlockFormat(name=name, element=e.E2M1, block=block, scale=e.E4M3, level=level))


#: NVFP4 as Transformer Engine computes it: E2M1, E4M3 scale per 16, float32 per tensor
NVFP4 = _nvfp4("nvfp4", (1, 16), Level.TENSOR)
#: the same with one scale per 16x16 tile: W and W^T quantize to the same values
NVFP4_16X16 = _nvfp4("nvfp4_16x16", (16, 16), Level.TENSOR)
#: second level per row instead of per tensor
NVFP4_ROWWISE = _nvfp4("nvfp4_rowwise", (1, 16), Level.ROW)
#: no second level
NVFP4_ONE_LEVEL = register(
    NVFP4.replace(name="nvfp4_one_level", level=Level.NONE, block_scale=BlockScale.DIVIDED)
)
#: NVFP4 with 4-over-6 block selection as Transformer Engine's default (MAE, second level at 256)
NVFP4_4OVER6 = register(
    NVFP4.replace(
        name="nvfp4_4over6",
        block_scale=BlockScale.DIVIDED,
        scale_cap=256.0,
        selection=Selection.MAE,
    )
)
NVFP4_4OVER6_16X16 = register(NVFP4_4OVER6.replace(name="nvfp4_4over6_16x16", block=(16, 16)))


def _mx(name: str, element: e.ElementType, rule: ScaleRule) -> BlockFormat:
    return register(
        BlockFormat(
            name=name,
            element=element,
            block=(1, 32),
            scale=e.E8M0,
            scale_rule=rule,
            block_scale=BlockScale.POWER_OF_TWO,
            keep_negative_zero=True,
        )
    )


#: OCP MX formats, block 32, E8M0 scale rounded up so that nothing is clipped; the other scale
#: rules are `MXFP4.replace(scale_rule=...)`, registered as "mxfp4_floor" and so on
MXFP4 = _mx("mxfp4", e.E2M1, ScaleRule.ROUND_UP)
MXFP4_32X32 = register(MXFP4.replace(name="mxfp4_32x32", block=(32, 32)))
MXFP6_E2M3 = _mx("mxfp6_e2m3", e.E2M3, ScaleRule.ROUND_UP)
MXFP6_E3M2 = _mx("mxfp6_e3m2", e.E3M2, ScaleRule.ROUND_UP)
MXFP8_E4M3 = _mx("mxfp8_e4m3", e.E4M3, ScaleRule.ROUND_UP)
MXFP8_E5M2 = _mx("mxfp8_e5m2", e.E5M2, ScaleRule.ROUND_UP)
for _fmt in (MXFP4, MXFP6_E2M3, MXFP6_E3M2, MXFP8_E4M3, MXFP8_E5M2):
    for _rule in (ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.EVEN, ScaleRule.NEAREST):
        register(_fmt.replace(name=f"{_fmt.name}_{_rule.name.lower()}", scale_rule=_rule))


# formats as other tools compute and store them; `fp4lab.compat` says what each is proven on
NVFP4_COMPRESSED_TENSORS = register(
    NVFP4.replace(
        name="nvfp4_compressed_tensors",
        block_scale=BlockScale.COMPRESSED_TENSORS,
        zero_scale=0.125,
    )
)
#: what it makes of a BF16 tensor, whose scales it computes in BF16
NVFP4_COMPRESSED_TENSORS_BF16 = register(
    NVFP4_COMPRESSED_TENSORS.replace(name="nvfp4_compressed_tensors_bf16", scale_precision=e.BF16)
)
MXFP4_COMPRESSED_TENSORS = register(
    MXFP4.replace(
        name="mxfp4_compressed_tensors", scale_rule=ScaleRule.EVEN, keep_negative_zero=False
    )
)
MXFP8_COMPRESSED_TENSORS = register(
    MXFP8_E4M3.replace(name="mxfp8_compressed_tensors", scale_rule=ScaleRule.EVEN_FP4)
)
NVFP4_MODELOPT = register(
    NVFP4.replace(
        name="nvfp4_modelopt",
        block_scale=BlockScale.MODELOPT,
        scale_floor=2.0**-9,
        zero_scale=1.0,
        zeros=Zeros.DECODED_POSITIVE,
    )
)
MXFP4_MODELOPT = register(
    MXFP4.replace(name="mxfp4_modelopt", ties=Ties.ZERO, zeros=Zeros.NEGATIVE)
)
NVFP4_TORCHAO = register(
    NVFP4.replace(
        name="nvfp4_torchao",
        block_scale=BlockScale.TORCHAO,
        scale_floor=2.0**-6,
        keep_negative_zero=True,
    )
)
NVFP4_TORCHAO_ONE_LEVEL = register(
    NVFP4_TORCHAO.replace(name="nvfp4_torchao_one_level", level=Level.NONE)
)
NVFP4_FOUROVERSIX_STATIC = register(
    NVFP4.replace(name="nvfp4_fouroversix_static", block_scale=BlockScale.FOUROVERSIX)
)
NVFP4_FOUROVERSIX = register(
    NVFP4_FOUROVERSIX_STATIC.replace(
        name="nvfp4_fouroversix", scale_cap=256.0, selection=Selection.MSE
    )
)
for _selection in (Selection.MAE, Selection.ABS_MAX):
    _name = f"nvfp4_fouroversix_{_selection.name.lower()}"
    register(NVFP4_FOUROVERSIX.replace(name=_name, selection=_selection))
register(NVFP4_FOUROVERSIX_STATIC.replace(name="nvfp4_fouroversix_static_4", amax_target=4.0))
MXFP4_FOUROVERSIX = register(MXFP4.replace(name="mxfp4_fouroversix", keep_negative_zero=False))
NVFP4_GGML = register(
    NVFP4_ONE_LEVEL.replace(
        name="nvfp4_ggml",
        scale=e.UE4M3,
        block_scale=BlockScale.GGML,
        ties=Ties.ZERO,
        zeros=Zeros.POSITIVE,
    )
)
MXFP4_GGML = register(
    MXFP4.replace(
        name="mxfp4_ggml", scale_rule=ScaleRule.FLOOR, ties=Ties.ZERO, zeros=Zeros.POSITIVE
    )
)
MXFP4_MICROXCALING = register(
    MXFP4.replace(name="mxfp4_microxcaling", scale_rule=ScaleRule.FLOOR, keep_negative_zero=False)
)
NVFP4_QWANTIZE = register(
    NVFP4_ONE_LEVEL.replace(name="nvfp4_qwantize", block_scale=BlockScale.QWANTIZE, ties=Ties.ZERO)
)
NVFP4_QWANTIZE_OPTIMAL = register(
    NVFP4_QWANTIZE.replace(name="nvfp4_qwantize_optimal", selection=Selection.SEARCH)
)


def _fp8(name: str, element: e.ElementType, block: tuple[int, int]) -> BlockFormat:
    fmt = BlockFormat(
        name=name,
        element=element,
        block=block,
        scale=e.FP32,
        block_scale=BlockScale.ENCODE,
        zero_scale=1.0,
        keep_negative_zero=True,
    )
    register(fmt.replace(name=f"{name}_pow2", scale_rule=ScaleRule.ROUND_UP))
    return register(fmt)


#: FP8 with one float32 scale per tensor from its current amax; "..._pow2" rounds it to a power of 2
FP8_TENSOR_E4M3 = _fp8("fp8_tensor_e4m3", e.E4M3, (WHOLE, WHOLE))
FP8_TENSOR_E5M2 = _fp8("fp8_tensor_e5m2", e.E5M2, (WHOLE, WHOLE))
FP8_ROW_E4M3 = _fp8("fp8_row_e4m3", e.E4M3, (1, WHOLE))
FP8_ROW_E5M2 = _fp8("fp8_row_e5m2", e.E5M2, (1, WHOLE))
#: FP8 with float32 scales per 1x128 (activations, gradients) and per 128x128 (weights)
FP8_1X128_E4M3 = _fp8("fp8_1x128_e4m3", e.E4M3, (1, 128))
FP8_1X128_E5M2 = _fp8("fp8_1x128_e5m2", e.E5M2, (1, 128))
FP8_128X128_E4M3 = _fp8("fp8_128x128_e4m3", e.E4M3, (128, 128))
FP8_128X128_E5M2 = _fp8("fp8_128x128_e5m2", e.E5M2, (128, 128))


# plain casts: the operands of an ordinary mixed-precision GEMM
def _cast(element: e.ElementType) -> BlockFormat:
    return register(
        BlockFormat(
            name=element.name, element=element, overflow=Overflow.SPECIAL, keep_negative_zero=True
        )
    )


BF16 = _cast(e.BF16)
FP16 = _cast(e.FP16)
