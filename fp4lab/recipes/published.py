"""Published training recipes as data.

All of them keep the output head in BF16, by a rule on its usual names (`head`, `lm_head`, `output`,
`embed_out`, classification heads `*.head`, `*_head`); embeddings, norms and attention's own
products are not linear layers and are never touched. BF16 means that operands are cast to BF16:
that is what the baseline `bf16` does everywhere, so that a comparison with it changes one thing.

Blocks in high precision belong to a recipe and a model: the plain names keep none, and
`nvfp4_last4`, `nvfp4_first2_last8` and `nvfp4_last8` are the NVFP4 paper's own lists for models of
20, 62 and 52 blocks. `Recipe.keep_high_precision` makes others.
"""

from __future__ import annotations

from fp4lab import formats
from fp4lab.formats import BlockFormat, Hadamard, Rounding
from fp4lab.recipes.operands import Gemm, LinearRecipe, Operand, Source
from fp4lab.recipes.recipe import Recipe
from fp4lab.recipes.rules import HEAD_IN_BF16

_BF16 = LinearRecipe.uniform(formats.BF16)
#: the very numbers that fprop multiplied
REUSED = Operand(source=Source.FORWARD)

BF16 = Recipe(
    name="bf16",
    linear=_BF16,
    provenance="The baseline: ordinary mixed precision, BF16 operands and float32 sums.",
)


def _fp8_tensor() -> Recipe:
    forward = Operand(format=formats.FP8_TENSOR_E4M3)
    gradient = Operand(format=formats.FP8_TENSOR_E5M2)
    return Recipe(
        name="fp8_tensor",
        linear=LinearRecipe(
            fprop=Gemm(a=forward, b=forward),
            dgrad=Gemm(a=gradient, b=REUSED),
            wgrad=Gemm(a=gradient, b=REUSED),
        ),
        rules=(HEAD_IN_BF16,),
        provenance=(
            "Transformer Engine, Float8CurrentScaling with its default Format.HYBRID: E4M3 for X "
            "and W, E5M2 for dY, one float32 scale per tensor from the current amax. A scale per "
            "tensor has no direction, so dgrad and wgrad reuse fprop's W and X."
        ),
    )


def _fp8_block() -> Recipe:
    row = Operand(format=formats.FP8_1X128_E4M3)
    return Recipe(
        name="fp8_block",
        linear=LinearRecipe(
            fprop=Gemm(a=row, b=Operand(format=formats.FP8_128X128_E4M3)),
            dgrad=Gemm(a=row, b=REUSED),
            wgrad=Gemm(a=row, b=row),
        ),
        rules=(HEAD_IN_BF16,),
        provenance=(
            "DeepSeek-V3 (arXiv 2412.19437 section 3.3) and Transformer Engine, "
            "Float8BlockScaling: E4M3, X and dY per 1x128, W per 128x128, reused in dgrad. Chosen: "
            "float32 scales as in DeepSeek-V3 and the FP8 reference of arXiv 2509.25149 "
            "(Transformer Engine rounds them to powers of two by default: fp8_1x128_e4m3_pow2); X "
            "and dY of wgrad are quantized from high precision along the tokens as in Transformer "
            "Engine."
        ),
    )


MXFP8 = Recipe(
    name="mxfp8",
    linear=LinearRecipe.uniform(formats.MXFP8_E4M3),
    rules=(HEAD_IN_BF16,),
    provenance=(
        "arXiv 2506.08027 (Mishra et al.): E4M3 for X, W and dY, power-of-two scales per 1x32 "
        "rounded up so that nothing is clipped; every operand is quantized from high precision "
        "along its own contracted axis."
    ),
)


def _fp4(
    name: str,
    *,
    row: BlockFormat,
    square: BlockFormat,
    hadamard: Hadamard,
    provenance: str,
) -> Recipe:
    """Section 4 of the NVFP4 paper with its four techniques, for one pair of formats."""
    gradient = Rounding.STOCHASTIC_8
    return Recipe(
        name=name,
        linear=LinearRecipe(
            fprop=Gemm(a=Operand(format=row), b=Operand(format=square)),
            dgrad=Gemm(a=Operand(format=row, rounding=gradient), b=REUSED),
            wgrad=Gemm(
                a=Operand(format=row, rounding=gradient, hadamard=hadamard),
                b=Operand(format=row, hadamard=hadamard),
            ),
        ),
        rules=(HEAD_IN_BF16,),
        provenance=provenance,
    )


NVFP4 = _fp4(
    "nvfp4",
    row=formats.NVFP4,
    square=formats.NVFP4_16X16,
    hadamard=Hadamard(size=16, signs=formats.NVFP4_SIGNS),
    provenance=(
        "arXiv 2509.25149 section 4 and Transformer Engine, NVFP4BlockScaling: X 1x16 to nearest; "
        "W 16x16 to nearest, the same codes in fprop and dgrad; dY 1x16 with 8-bit stochastic "
        "rounding; wgrad's operands from high precision along the tokens after a Hadamard "
        "transform of size 16 with one fixed sign vector."
    ),
)

MXFP4 = _fp4(
    "mxfp4",
    row=formats.MXFP4,
    square=formats.MXFP4_32X32,
    hadamard=Hadamard(size=32, signs=0),
    provenance=(
        "arXiv 2509.25149 section 5: the whole methodology of section 4 with MXFP4 in place of "
        "NVFP4, scales rounded up, Hadamard size 32 in wgrad to fit the block. Chosen where the "
        "paper is silent: W per 32x32, because the methodology includes 2D scales of W that are "
        "as wide as a block ('mxfp4-2d' has 1x32); signs drawn once from seed 0, because the "
        "published vector has 16 entries."
    ),
)

NVFP4_BASE = Recipe(
    name="nvfp4_base",
    linear=LinearRecipe.uniform(formats.NVFP4),
    rules=(HEAD_IN_BF16,),
    provenance=(
        "arXiv 2509.25149 appendix E.1, the base of its ablations: every operand NVFP4 1x16 along "
        "its own contracted axis, to nearest, no transform."
    ),
)

PUBLISHED: tuple[Recipe, ...] = (
    BF16,
    _fp8_tensor(),
    _fp8_block(),
    MXFP8,
    MXFP4,
    NVFP4,
    NVFP4_BASE,
    NVFP4.keep_high_precision(last=4),
    NVFP4.keep_high_precision(first=2, last=8),
    NVFP4.keep_high_precision(last=8),
)
