"""The presets say what their sources say."""

import pytest

from fp4lab import formats, recipes
from fp4lab.errors import InputError
from fp4lab.formats import Hadamard, Rounding, ScaleRule
from fp4lab.recipes import LinearRecipe, Operand, Recipe, Source
from fp4lab.recipes.places import DGRAD_DY, DGRAD_W, FPROP_W, FPROP_X, PLACES, WGRAD_DY, WGRAD_X
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


def test_mxfp4_is_section_5_of_the_paper():
    row, sr, rht = formats.MXFP4, Rounding.STOCHASTIC_8, Hadamard(32, 0)
    assert (row.element, row.block, row.scale) == (formats.E2M1, (1, 32), formats.E8M0)
    assert recipes.get("mxfp4").linear.operands() == {
        FPROP_X: Operand(format=row),
        FPROP_W: Operand(format=row.replace(name="mxfp4_32x32", block=(32, 32))),
        DGRAD_DY: Operand(format=row, rounding=sr),
        DGRAD_W: Operand(source=Source.FORWARD),
        WGRAD_DY: Operand(format=row, rounding=sr, hadamard=rht),
        WGRAD_X: Operand(format=row, hadamard=rht),
    }


def test_fp8_recipes_are_those_of_transformer_engine_and_deepseek():
    e4m3, e5m2 = formats.get("fp8_tensor_e4m3"), formats.get("fp8_tensor_e5m2")
    x, dy, reused = Operand(format=e4m3), Operand(format=e5m2), Operand(source=Source.FORWARD)
    assert recipes.get("fp8_tensor").linear.operands() == {
        FPROP_X: x, FPROP_W: x, DGRAD_DY: dy, DGRAD_W: reused, WGRAD_DY: dy, WGRAD_X: reused,
    }  # fmt: skip
    row = Operand(format=formats.get("fp8_1x128_e4m3"))
    square = Operand(format=formats.get("fp8_128x128_e4m3"))
    assert recipes.get("fp8_block").linear.operands() == {
        FPROP_X: row, FPROP_W: square, DGRAD_DY: row, DGRAD_W: reused, WGRAD_DY: row, WGRAD_X: row,
    }  # fmt: skip


@pytest.mark.parametrize(("name", "fmt"), [("mxfp8", "mxfp8_e4m3"), ("nvfp4_base", "nvfp4")])
def test_recipes_of_one_format_quantize_every_operand_to_nearest(name, fmt):
    operands = recipes.get(name).linear.operands()
    assert operands == dict.fromkeys(PLACES, Operand(format=formats.get(fmt)))


@pytest.mark.parametrize(
    ("name", "blocks", "kept"),
    [
        ("nvfp4_last4", 20, {16, 17, 18, 19}),
        ("nvfp4_first2_last8", 62, {0, 1, *range(54, 62)}),
        ("nvfp4_last8", 52, set(range(44, 52))),
    ],
)
def test_the_paper_s_lists_of_blocks_in_high_precision(name, blocks, kept):
    recipe = recipes.get(name)
    found = {b for b in range(blocks) if recipe.resolve("mlp.up", b, blocks).linear == BF16}
    assert found == kept
    rest = {recipe.resolve("mlp.up", b, blocks).linear for b in set(range(blocks)) - kept}
    assert rest == {recipes.get("nvfp4").linear}


def test_registration():
    with pytest.raises(InputError, match="is taken"):
        recipes.register(Recipe(name="nvfp4", linear=BF16))
    with pytest.raises(InputError, match="may hold"):
        recipes.register(Recipe(name="NV-FP4", linear=BF16))
    assert recipes.register(recipes.get("nvfp4")) == recipes.get("nvfp4")


def test_unknown_names_get_a_suggestion():
    with pytest.raises(InputError, match="recipe='nvfp5' is not known; did you mean 'nvfp4'"):
        recipes.get("nvfp5")
    with pytest.raises(InputError, match="recipe='bogus' is not known; use one of bf16, ") as e:
        recipes.get("bogus")
    assert str(e.value).endswith("nvfp4_last8, or a format's name")
    assert "fp8_row_e4m3_pow2" not in str(e.value)


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
