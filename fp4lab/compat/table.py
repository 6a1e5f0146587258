"""The tools, and the formats that do the same."""

from __future__ import annotations

from dataclasses import dataclass

from fp4lab import formats as f
from fp4lab.compat.words import differences
from fp4lab.errors import unknown
from fp4lab.formats import BlockFormat, Level


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one tool does, and the format that does the same.

    Args:
        tool: its name, as in a package index.
        version: the release or commit that made the arrays.
        what: what it quantizes.
        format: the format that reproduces it.
        golden: the file of recorded arrays.
        pattern: the keys in it that are proof, a regular expression.
        stored: the tool's names for codes, block scales and tensor scale ("" where it has none).
        limits: what it does otherwise all the same, where no recorded number can show it.

    >>> row = get("compressed-tensors")[0]
    >>> row.format.name, row.stored[2], row.format.direction.name
    ('nvfp4_compressed_tensors', 'weight_global_scale', 'ENCODE')
    """

    tool: str
    version: str
    what: str
    format: BlockFormat
    golden: str
    pattern: str
    stored: tuple[str, str, str]
    limits: str = ""

    @property
    def differences(self) -> tuple[str, ...]:
        """How it differs from Transformer Engine's format of the same kind, in words.

        >>> get("qwantize")[0].differences[0]
        'no second level'
        """
        return differences(self.format)


_TE, _AO, _CT, _MO = "transformer-engine", "torchao", "compressed-tensors", "nvidia-modelopt"
_FOS, _GGML, _QW, _MX = "fouroversix", "ggml", "qwantize", "microxcaling"
_VERSIONS = {
    _TE: "d0067d0",
    _AO: "0.18.0",
    _CT: "0.20.1",
    _MO: "0.47.0",
    _FOS: "dadfad6",
    _GGML: "d99724f",
    _QW: "0.1.1",
    _MX: "7bc4195",
}
_STORED = {
    _TE: ("_rowwise_data", "_rowwise_scale_inv", "_amax_rowwise"),
    _AO: ("qdata", "scale", "per_tensor_scale"),
    _CT: ("weight_packed", "weight_scale", "weight_global_scale"),
    _MO: ("weight", "weight_scale", "weight_scale_2"),
    _FOS: ("values", "scale_factors", "amax"),
    _GGML: ("qs", "d", ""),
    _QW: ("quants", "scales", ""),
    _MX: ("", "", ""),
}
_NAN = "NaN in codes is another number"
_LOG2 = (
    "it takes a logarithm in float32, so that a largest number within about a millionth of a power "
    "of two can get the scale of its neighbour"
)
_WRAPS = (
    "it does not limit codes: numbers of 7 times their scale and more (scales of 2^-9 and 2^-8 "
    "allow them) wrap to -0, and an amax whose reciprocal overflows makes codes of no meaning; "
    "sums of errors are in the order of torch.sum, which depends on the machine"
)


def _row(
    tool: str, what: str, fmt: BlockFormat, keys: str, limits: str = "", file: str = ""
) -> Row:
    """A row; keys are those of any input."""
    one_level = fmt.level == Level.NONE
    codes, scales, outer = _STORED[tool]
    return Row(
        tool=tool,
        version=_VERSIONS[tool],
        what=what,
        format=fmt,
        golden=f"{file or tool.replace('-', '_').removeprefix('nvidia_')}.npz",
        pattern=keys if keys.startswith("(") else rf"\w+/{keys}",
        stored=(codes, scales, "" if one_level else outer),
        limits=limits,
    )


TABLE: tuple[Row, ...] = (
    _row(_TE, "NVFP4, 1x16", f.NVFP4, "1x16/.*", file="te_nvfp4"),
    _row(_TE, "NVFP4, 16x16 weights", f.NVFP4_16X16, "16x16/.*", file="te_nvfp4"),
    _row(_TE, "NVFP4, an amax per row", f.NVFP4_ROWWISE, "1x16_rowscaled/.*", file="te_nvfp4"),
    _row(_TE, "NVFP4, 4-over-6", f.NVFP4_4OVER6, "1x16_46_mae_256/.*", file="te_nvfp4"),
    _row(
        _TE,
        "FP8 E4M3, 1x128",
        f.FP8_1X128_E4M3,
        r"e4m3/1x128/f32/(data|scale_inv)",
        file="te_fp8_blockwise",
    ),
    _row(_TE, "FP8 E4M3, current scaling", f.FP8_TENSOR_E4M3, "e4m3/f32/.*", file="te_fp8_current"),
    _row(_AO, "NVFP4, two levels", f.NVFP4_TORCHAO, "two_level/.*", _NAN, "torchao_nvfp4"),
    _row(_AO, "NVFP4, one level", f.NVFP4_TORCHAO_ONE_LEVEL, "one_level/.*", _NAN, "torchao_nvfp4"),
    _row(_AO, "MXFP4, its default rule", f.get("mxfp4_floor"), "mxfp4/floor/.*", "", "torchao_mx"),
    _row(
        _AO,
        "MXFP8 E4M3, its default rule",
        f.get("mxfp8_e4m3_floor"),
        "mxfp8_e4m3/floor/.*",
        "0.18.0 mistakes the scale of float32 subnormals",
        "torchao_mx",
    ),
    _row(_CT, "NVFP4 of float32", f.NVFP4_COMPRESSED_TENSORS, r"((?!bf16_)\w+)/nvfp4a16/.*"),
    _row(_CT, "NVFP4 of bfloat16", f.NVFP4_COMPRESSED_TENSORS_BF16, r"(bf16_\w+)/nvfp4a16/.*"),
    _row(
        _CT,
        "MXFP4",
        f.MXFP4_COMPRESSED_TENSORS,
        "mxfp4a16/.*",
        "blocks with an infinity have a finite scale",
    ),
    _row(
        _CT,
        "MXFP8",
        f.MXFP8_COMPRESSED_TENSORS,
        "mxfp8a16/.*",
        "blocks with an infinity have a finite scale",
    ),
    _row(
        _MO,
        "NVFP4",
        f.NVFP4_MODELOPT,
        "nvfp4/.*",
        f"{_NAN}; incomplete blocks are filled with zeros, and cannot be decoded again",
    ),
    _row(
        _MO,
        "MXFP4",
        f.MXFP4_MODELOPT,
        "mxfp4/.*",
        f"blocks run over the ends of rows; with NaN or infinity their scale is finite; {_LOG2}",
    ),
    _row(
        _MO,
        "MXFP8",
        f.MXFP8_E4M3,
        "mxfp8/.*",
        f"blocks with NaN or infinity have a finite scale; {_LOG2}",
    ),
    _row(_FOS, "NVFP4, static_6", f.NVFP4_FOUROVERSIX_STATIC, "nvfp4_1x16/static_6/.*", _WRAPS),
    _row(
        _FOS,
        "NVFP4, static_4",
        f.get("nvfp4_fouroversix_static_4"),
        "nvfp4_1x16/static_4/.*",
        _WRAPS,
    ),
    _row(_FOS, "NVFP4, mse", f.NVFP4_FOUROVERSIX, "nvfp4_1x16/mse/.*", _WRAPS),
    _row(_FOS, "NVFP4, mae", f.get("nvfp4_fouroversix_mae"), "nvfp4_1x16/mae/.*", _WRAPS),
    _row(
        _FOS, "NVFP4, abs_max", f.get("nvfp4_fouroversix_abs_max"), "nvfp4_1x16/abs_max/.*", _WRAPS
    ),
    _row(
        _FOS,
        "MXFP4",
        f.MXFP4_FOUROVERSIX,
        "mxfp4/static_6/(codes|scale)",
        "blocks of float32 subnormals have the scale 2^-126, those with an infinity a finite one",
    ),
    _row(
        _GGML,
        "NVFP4 blocks",
        f.NVFP4_GGML,
        "nvfp4/.*",
        "a NaN is 0 and leaves its block alone; 64 numbers make a block of the file, whose first "
        "halves of 16 lie in the low nibbles",
    ),
    _row(
        _GGML,
        "MXFP4 blocks",
        f.MXFP4_GGML,
        "mxfp4/.*",
        f"a NaN is 0; scales below 2^-127 wrap round; {_LOG2}",
    ),
    _row(_QW, "NVFP4, naive", f.NVFP4_QWANTIZE, r"naive_\w+"),
    _row(
        _QW,
        "NVFP4, optimal",
        f.NVFP4_QWANTIZE_OPTIMAL,
        r"optimal_\w+",
        "sums of errors are in the order of torch.sum, which depends on the machine",
    ),
    _row(
        _MX,
        "MXFP4, even",
        f.MXFP4_MICROXCALING,
        "fp4_e2m1/even/.*",
        "it makes values only, no codes",
    ),
)


def tools() -> tuple[str, ...]:
    """The names of all tools, in the order of the table.

    >>> tools()[:3]
    ('transformer-engine', 'torchao', 'compressed-tensors')
    """
    return tuple(dict.fromkeys(row.tool for row in TABLE))


def get(tool: str) -> tuple[Row, ...]:
    """The rows of a tool; an unknown name is an InputError with a suggestion.

    >>> [row.format.name for row in get("ggml")]
    ['nvfp4_ggml', 'mxfp4_ggml']
    """
    if tool not in tools():
        raise unknown("tool", tool, tools())
    return tuple(row for row in TABLE if row.tool == tool)
