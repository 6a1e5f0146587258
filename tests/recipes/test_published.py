"""The presets say what their sources say."""

import pytest

from fp4lab import formats, recipes
from fp4lab.errors import InputError
from fp4lab.formats import Hadamard, Rounding, ScaleRule
from fp4lab.recipes import LinearRecipe, Operand, Recipe, Source
from fp4lab.recipes.places import DGRAD_DY, DGRAD_W, FPROP_W, FPROP_X, WGRAD_DY, WGRAD_X
from fp4lab.recipes.published import PUBLISHED

BF16 = LinearRecipe.uniform(formats.BF16)
NAMES = {
    "bf16",
    "fp8_tensor",
    "fp8_block",
    "mxfp8",
    "mxfp4",
    "nvfp4",
    "nvfp4_base",
    "nvfp4_last4",
    "nvfp4_first2_last8",
    "nvfp4_last8",
}
HEADS = ["head", "lm_head", "model.lm_head", "output", "embed_out", "gpt_neox.embed_out"]
INNER = [
    "blocks.0.attention.out",
    "model.layers.0.self_attn.o_proj",
    "bert.encoder.layer.0.attention.output.dense",
    "layers.0.attention.output",
    "transformer.h.0.attn.c_proj",
]


def test_names():
    assert {recipe.name for recipe in PUBLISHED} == NAMES
    assert set(recipes.names()) >= NAMES
    assert all(recipes.get(name).name == name for name in NAMES)


@pytest.mark.parametrize("recipe", PUBLISHED, ids=lambda recipe: recipe.name)
def test_the_head_stays_in_bf16_and_inner_projections_do_not(recipe):
    assert {recipe.resolve(name).linear for name in HEADS} == {BF16}
    if recipe.name != "bf16":
        assert {recipe.resolve(name, 10, 62).linear for name in INNER} == {recipe.linear}
        assert recipe.linear.is_quantized
    assert recipe.provenance


def test_nvfp4_is_section_4_of_the_paper():
    nvfp4, sr = formats.NVFP4, Rounding.STOCHASTIC_8
    rht = Hadamard(16, (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1))
    assert recipes.get("nvfp4").linear.operands() == {
        FPROP_X: Operand(format=nvfp4),
        FPROP_W: Operand(format=formats.NVFP4_16X16),
        DGRAD_DY: Operand(format=nvfp4, rounding=sr),
        DGRAD_W: Operand(source=Source.FORWARD),
        WGRAD_DY: Operand(format=nvfp4, rounding=sr, hadamard=rht),
        WGRAD_X: Operand(format=nvfp4, hadamard=rht),
    }


def test_mx_scales_are_rounded_up():
    for name in ("mxfp8", "mxfp4"):
        operands = recipes.get(name).linear.operands().values()
        rules = {op.format.scale_rule for op in operands if op.format is not None}
        assert rules == {ScaleRule.ROUND_UP}


def test_gradients_of_fp8_tensor_are_e5m2():
    linear = recipes.get("fp8_tensor").linear
    assert linear.dgrad.a.format == linear.wgrad.a.format == formats.FP8_TENSOR_E5M2
    assert linear.fprop.a.format == linear.fprop.b.format == formats.FP8_TENSOR_E4M3


def test_registration():
    with pytest.raises(InputError, match="is taken"):
        recipes.register(Recipe(name="nvfp4", linear=BF16))
    with pytest.raises(InputError, match="may hold"):
        recipes.register(Recipe(name="NV-FP4", linear=BF16))
    assert recipes.register(recipes.get("nvfp4")) == recipes.get("nvfp4")


def test_unknown_names_get_a_suggestion():
    with pytest.raises(InputError, match="recipe='nvfp5' is not known; did you mean 'nvfp4'"):
        recipes.get("nvfp5")
    with pytest.raises(InputError, match="recipe='nope_last4' is not known"):
        recipes.get("nope_last4")


@pytest.mark.parametrize(
    "make",
    [
        lambda: recipes.get("nvfp4").keep_high_precision(last=2),
        lambda: recipes.get("nvfp4_base").keep_high_precision(first=1, last=1).with_("sr"),
        lambda: recipes.get("nvfp4_last4").without("rht").with_("sr", where="x"),
        lambda: recipes.get("mxfp4").without("sr", where="dgrad"),
    ],
)
def test_a_made_recipe_is_found_by_its_name(make):
    recipe = make()
    assert recipes.get(recipe.name) == recipe


def test_blocks_kept_after_a_change_go_before_it_in_the_name():
    recipe = recipes.get("nvfp4-rht").keep_high_precision(last=2)
    assert recipe.name == "nvfp4_last2-rht"
    assert recipes.get(recipe.name).hash == recipe.hash
