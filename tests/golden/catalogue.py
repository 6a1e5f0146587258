"""Every recorded array: what it is compared with, or why it is not.

`FAMILIES` maps the keys of a file to a function that computes the same array with fp4lab.
`NOT_APPLICABLE` lists the keys that are compared with nothing, with the reason. A key belongs to
exactly one of them (`test_golden.py` holds that), so nothing is left out silently.

`arrays.py` says what equal means; `other_tools.py` holds the part of the tools that quantize in an
order of their own.
"""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import torch

import fp4lab
from fp4lab import formats as f
from fp4lab.formats import BlockFormat, ElementType, Overflow
from fp4lab.kernels import backends
from fp4lab.kernels.hadamard.reference import hadamard
from fp4lab.kernels.minifloat.reference import encode, round_stochastic
from tests.golden import other_tools
from tests.golden.arrays import Ours, Outcome, load, outcome
from tests.golden.computed import FUSED, Family, quantized, recorded_input


def family_of(file: str, key: str) -> list[tuple[Family, dict[str, str]]]:
    """The families (exactly one, if all is well) that claim a key, with its parts."""
    found = ((family, re.fullmatch(family.pattern, key)) for family in FAMILIES)
    return [(family, match.groupdict()) for family, match in found if match and family.file == file]


def compare(file: str, key: str) -> Outcome:
    """Compute the array of this key and compare it with the recorded one.

    The C version, where it is used, and the reference must both match.
    """
    [(family, parts)] = family_of(file, key)
    found = outcome(family.compute(**parts), load(file)[key])
    with backends.backend("reference"):
        reference = outcome(family.compute(**parts), load(file)[key])
    return found._replace(different=max(found.different, reference.different))


# Transformer Engine, NVFP4

SIGNED = f.Hadamard(16, f.NVFP4_SIGNS)
NVFP4 = {
    "1x16": f.NVFP4,
    "1x16_rht": f.NVFP4,
    "1x16_rht_nosign": f.NVFP4,
    "16x16": f.NVFP4_16X16,
    "1x16_rowscaled": f.NVFP4_ROWWISE,
    "1x16_46_mae_256": f.NVFP4_4OVER6,
    "1x16_46_mse_256": f.NVFP4_4OVER6.replace(selection=f.Selection.MSE),
    "1x16_46_mae_448": f.NVFP4_4OVER6.replace(scale_cap=448.0),
    "16x16_46_mae_256": f.NVFP4_4OVER6_16X16,
}
#: the columnwise operand of these is transformed
TRANSFORMS = {
    "1x16_rht": SIGNED,
    "1x16_rht_nosign": f.Hadamard(16),
}


def nvfp4(x: str, config: str, columnwise: bool) -> fp4lab.QuantizedTensor:
    if columnwise:
        return quantized(x, NVFP4[config], -2, TRANSFORMS.get(config))
    return quantized(x, NVFP4[config])


def nvfp4_part(x: str, config: str, part: str, t: str | None) -> Ours:
    q = nvfp4(x, config, t is not None)
    if part == "scale":
        # recorded for every row, whatever the height of a block
        assert q.format.block is not None
        scales = q.scales.repeat_interleave(q.format.block[0], 0)
        return Ours(array=scales.numpy(), element=f.E4M3)
    return Ours(array={"codes": q.codes, "amax": q.amax}[part].numpy())


def nvfp4_values(x: str, config: str) -> Ours:
    return Ours(array=fp4lab.dequantize(nvfp4(x, config, False)).numpy())


def nvfp4_transformed(x: str) -> Ours:
    y = hadamard(recorded_input(x), SIGNED)
    return Ours(array=y.numpy() if y.dtype == torch.float32 else y.view(torch.uint16).numpy())


def nvfp4_matrix() -> Ours:
    return Ours(array=hadamard(torch.eye(16), SIGNED).numpy())


def nvfp4_signs() -> Ours:
    return Ours(array=np.array(SIGNED.vector, np.float32))


def swizzled() -> Ours:
    linear = torch.from_numpy(load("te_nvfp4")["swizzle/linear_256x16"])
    return Ours(array=fp4lab.swizzle_128x4(linear).numpy())


def unswizzled() -> Ours:
    tiles = torch.from_numpy(load("te_nvfp4")["swizzle/swizzled_256x16"])
    return Ours(array=fp4lab.unswizzle_128x4(tiles, 256, 16).numpy())


def nvfp4_gemm(dtype: str, product: str) -> Ours:
    """The three products of a linear layer: W in 16x16, dY^T and X^T transformed."""
    prefix = {"f32": "", "bf16": "bf16_"}[dtype]
    x, w = recorded_input(f"{prefix}normal"), recorded_input(f"{prefix}heavy")
    dy = recorded_input(f"{prefix}outliers")[:, :64]
    rht = TRANSFORMS["1x16_rht"]
    a, b = {
        "fprop_y": ((x, f.NVFP4, -1, None), (w, f.NVFP4_16X16, -1, None)),
        "dgrad_dx": ((dy, f.NVFP4, -1, None), (w, f.NVFP4_16X16, -2, None)),
        "wgrad_dw": ((dy, f.NVFP4, -2, rht), (x, f.NVFP4, -2, rht)),
    }[product]
    operands = [fp4lab.quantize(x, fmt, axis=axis, hadamard=h) for x, fmt, axis, h in (a, b)]
    return Ours(array=fp4lab.scaled_matmul(*operands).numpy())


# Transformer Engine, FP8


def fp8_blockwise(x: str, element: str, block: str, scale: str, part: str, t: str | None) -> Ours:
    fmt = f.get(f"fp8_{block}_{element}" + ("_pow2" if scale == "pow2" else ""))
    q = quantized(x, fmt, -1 if t is None else -2)
    if part == "data":
        return Ours(array=q.codes.numpy(), element=fmt.element)
    # recorded as cuBLAS wants them: 1x128 scales transposed, rows padded to 4 with zeros
    scales = q.scales.t() if block == "1x128" else q.scales
    return Ours(array=np.pad(scales.numpy(), ((0, 0), (0, -scales.shape[1] % 4))))


def fp8_current(x: str, element: str, scale: str, part: str) -> Ours:
    fmt = f.get(f"fp8_tensor_{element}" + ("_pow2" if scale == "pow2" else ""))
    q = quantized(x, fmt)
    if part == "data":
        return Ours(array=q.codes.numpy(), element=fmt.element)
    return Ours(array=q.scales.reshape(1).numpy())


# MX

RULES = {
    "floor": f.ScaleRule.FLOOR,
    "ceil": f.ScaleRule.CEIL,
    "even": f.ScaleRule.EVEN,
    "rceil": f.ScaleRule.ROUND_UP,
}
INFINITE = "blocks with NaN or infinity: 0.18.0 gives some a finite scale, HEAD gives all NaN"
NAN_BLOCKS = "codes of blocks whose scale is NaN"


def mx_part(file: str, x: str, fmt: str, rule: str, part: str) -> Ours:
    q = quantized(x, f.get(fmt).replace(scale_rule=RULES[rule]))
    array = {"data": q.codes, "scale": q.scales}[part].numpy()
    element = f.E8M0 if part == "scale" else q.format.element
    nan = q.scales.numpy() == f.E8M0.nan_code
    old = file == "torchao_mx"
    if not nan.any() or (part == "scale" and not old):
        return Ours(array=array, element=element)
    skip = nan if part == "scale" else nan.repeat(array.shape[1] // nan.shape[1], axis=1)
    if not old and element == f.E2M1:
        return Ours(array=array, element=element, skip=skip, why=NAN_BLOCKS)
    return Ours(array=array, element=element, skip=skip if old else None, why=INFINITE * old)


def mx_values(x: str, fmt: str, rule: str) -> Ours:
    """From the recorded codes and scales, so that those of 0.18.0 decode too."""
    parts = [
        torch.from_numpy(load("torchao_mx")[f"{x}/{fmt}/{rule}/{part}"])
        for part in ("data", "scale")
    ]
    q = fp4lab.QuantizedTensor(*parts, torch.zeros(0), f.get(fmt), recorded_input(x).shape)
    return Ours(array=fp4lab.dequantize(q).numpy())


def microxcaling(x: str, element: str, ties: str) -> Ours:
    """OCP's floor rule; its zeros lose their sign where the input is -0."""
    base = {"fp4_e2m1": f.MXFP4, "fp8_e4m3": f.MXFP8_E4M3, "fp8_e5m2": f.MXFP8_E5M2}[element]
    fmt = base.replace(
        scale_rule=f.ScaleRule.FLOOR,
        ties={"even": f.Ties.EVEN, "nearest": f.Ties.AWAY}[ties],
        keep_negative_zero=False,
    )
    return Ours(array=fp4lab.fake_quantize(recorded_input(x).to(torch.float32), fmt).numpy())


# Casts of single numbers

CASTS = {
    "ml_dtypes/float4_e2m1fn": (f.E2M1, Overflow.SATURATE),
    "ml_dtypes/float8_e4m3fn": (f.E4M3, Overflow.SPECIAL),
    "ml_dtypes/float8_e5m2": (f.E5M2, Overflow.SPECIAL),
    "torch2.13_cpu/float8_e4m3fn": (f.E4M3, Overflow.SATURATE),
    "torch2.13_cpu/float8_e5m2": (f.E5M2, Overflow.SPECIAL),
    "gfloat_sat/e2m1": (f.E2M1, Overflow.SATURATE),
    "gfloat_sat/e4m3": (f.E4M3, Overflow.SATURATE),
    "gfloat_sat/e5m2": (f.E5M2, Overflow.SATURATE),
}


def cast(key: str) -> Ours:
    element, overflow = CASTS[key]
    x = load("scalar_casts")["x_finite" if key.startswith("gfloat") else "x"]
    codes = encode(fp4lab.cast(torch.from_numpy(x), element, overflow=overflow), element)
    if element == f.E2M1 and key.startswith("ml_dtypes"):
        why = "NaN, which E2M1 lacks: ml_dtypes makes it -0, fp4lab 0"
        return Ours(array=codes.numpy(), skip=np.isnan(x), why=why)
    return Ours(array=codes.numpy(), element=element)


def cast_to_scale(tool: str) -> Ours:
    """E8M0 exists as a block scale only: blocks of one element whose largest number is 1."""
    fmt = BlockFormat(
        name="powers of two",
        element=ElementType("one", 1, 0, 1),
        block=(1, 1),
        scale=f.E8M0,
        block_scale=f.BlockScale.POWER_OF_TWO,
    )
    x = load("scalar_casts")["x"]
    scales = fp4lab.quantize(torch.from_numpy(x).reshape(-1, 1), fmt).scales.reshape(-1).numpy()
    if tool == "ml_dtypes":
        why = "zeros and negative numbers: ml_dtypes makes them NaN, a scale is that of |x|"
        return Ours(array=scales, element=f.E8M0, skip=~(x > 0) & ~np.isnan(x), why=why)
    return Ours(array=scales, element=f.E8M0)


def stochastic() -> Ours:
    arrays = load("stochastic")
    x, random = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["rbits8"])
    return Ours(array=encode(round_stochastic(x, f.E2M1, random, 8), f.E2M1).numpy())


_CONFIG = "(?P<config>" + "|".join(NVFP4) + ")"
_FP8 = r"(?P<x>\w+)/(?P<element>e4m3|e5m2)/"
_MX = r"(?P<x>\w+)/(?P<fmt>mx\w+)/(?P<rule>floor|rceil|ceil|even)/"

FAMILIES = [
    Family("te_nvfp4", rf"(?P<x>\w+)/{_CONFIG}/(?P<part>codes|scale|amax)(?P<t>_t)?", nvfp4_part),
    Family("te_nvfp4", rf"(?P<x>\w+)/{_CONFIG}/deq", nvfp4_values),
    Family("te_nvfp4", r"(?P<x>\w+)/rht_out", nvfp4_transformed),
    Family("te_nvfp4", "rht_matrix_f32", nvfp4_matrix),
    Family("te_nvfp4", "sign_vector", nvfp4_signs),
    Family("te_nvfp4", "swizzle/swizzled_256x16", swizzled),
    Family("te_nvfp4", "swizzle/linear_256x16", unswizzled),
    Family("te_nvfp4", r"gemm_(?P<dtype>f32|bf16)/(?P<product>\w+)", nvfp4_gemm),
    Family(
        "te_fp8_blockwise",
        rf"{_FP8}(?P<block>\d+x128)/(?P<scale>pow2|f32)/(?P<part>data|scale_inv)(?P<t>_t)?",
        fp8_blockwise,
    ),
    Family("te_fp8_current", rf"{_FP8}(?P<scale>pow2|f32)/(?P<part>data|scale_inv)", fp8_current),
    Family("torchao_mx", rf"{_MX}(?P<part>data|scale)", partial(mx_part, "torchao_mx")),
    Family("torchao_mx", rf"{_MX}deq", mx_values),
    Family(
        "torchao_head_mx_changed",
        rf"{_MX}(?P<part>data|scale)",
        partial(mx_part, "torchao_head_mx_changed"),
    ),
    Family(
        "microxcaling",
        r"(?P<x>\w+)/(?P<element>\w+)/(?P<ties>even|nearest)/fake",
        microxcaling,
    ),
    Family("scalar_casts", "(?P<key>" + "|".join(map(re.escape, CASTS)) + ")", cast),
    Family("scalar_casts", r"(?P<tool>ml_dtypes|torch2\.13_cpu)/float8_e8m0fnu", cast_to_scale),
    Family(
        "stochastic", "te_software_cvt_rs_codes|gfloat/StochasticFastest_e2m1_codes", stochastic
    ),
    *other_tools.FAMILIES,
]

INPUT = "an input"
_OLD = "0.18.0 mistakes scale byte 0; HEAD's arrays are in torchao_head_mx_changed.npz"
_OTHER_BITS = "another rule for the part of the fraction below its 8 leading bits"

#: file, pattern of keys, reason
NOT_APPLICABLE = [
    ("inputs", ".*", INPUT),
    ("scalar_casts", "x|x_finite", INPUT),
    ("stochastic", "x|rbits8", INPUT),
    ("te_nvfp4", "subnormal/1x16_rht/codes_t", FUSED),
    ("te_nvfp4", "subnormal/1x16_rht/amax_t", FUSED),
    ("torchao_mx", r"subnormal/mxfp8_\w+/\w+/data", _OLD),
    ("stochastic", r"gfloat/Stochastic(Fast|Odd)?_e2m1_codes", _OTHER_BITS),
    *other_tools.NOT_APPLICABLE,
]


def reason_not(file: str, key: str) -> str | None:
    """Why a key is compared with nothing, or None."""
    for other, pattern, reason in NOT_APPLICABLE:
        if file == other and re.fullmatch(pattern, key):
            return reason
    return None


FILES = list(dict.fromkeys([*(family.file for family in FAMILIES), "inputs"]))


def applicable(file: str) -> list[str]:
    """The keys that are compared."""
    return [key for key in load(file) if reason_not(file, key) is None]
