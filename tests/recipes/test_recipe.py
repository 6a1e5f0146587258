"""The precision schedule, and validation of recipes."""

from dataclasses import replace

import pytest

from fp4lab import formats, recipes
from fp4lab.errors import InputError
from fp4lab.recipes import LinearRecipe, Operand, Recipe, Rule, Switch

NVFP4, BF16 = recipes.get("nvfp4_last4"), recipes.get("bf16")
LAYERS = [("blocks.0.mlp.up", 0, 20), ("blocks.19.mlp.up", 19, 20), ("head", None, None)]


def in_force(recipe: Recipe) -> list[LinearRecipe | None]:
    return [recipe.resolve(*layer).linear for layer in LAYERS]


def test_without_a_schedule_a_recipe_is_always_in_force():
    assert NVFP4.at(0) == NVFP4.at(10**9, decay_start=5) == NVFP4


@pytest.mark.parametrize(("step", "switched"), [(0, False), (99, False), (100, True), (5000, True)])
def test_figure_7_switch_to_bf16(step, switched):
    recipe = NVFP4.switch(BF16, at="decay")
    assert recipe.at(step, decay_start=100) == (BF16 if switched else NVFP4)


def test_figure_7_switch_the_forward_only():
    recipe = NVFP4.switch(BF16, at=100, part="forward")
    assert in_force(recipe.at(99)) == in_force(NVFP4)
    middle, last, head = in_force(recipe.at(100))
    assert last == head == BF16.linear
    assert middle.fprop == BF16.linear.fprop
    assert middle.wgrad == NVFP4.linear.wgrad
    # the numbers of W in dgrad stay those of 16x16 blocks, which fprop no longer makes
    assert middle.dgrad == replace(NVFP4.linear.dgrad, b=Operand(format=formats.NVFP4_16X16))


def test_figure_7_switch_the_backward_only():
    recipe = NVFP4.switch(BF16, at=100, part="backward")
    middle, last, head = in_force(recipe.at(100))
    assert last == head == BF16.linear
    assert middle == LinearRecipe(
        fprop=NVFP4.linear.fprop, dgrad=BF16.linear.dgrad, wgrad=BF16.linear.wgrad
    )
    # the paper then scales W in one dimension
    one_dimensional = NVFP4.without("2d")
    paper = NVFP4.switch(one_dimensional.switch(BF16, at=0, part="backward").at(0), at=100)
    middle = in_force(paper.at(100))[0]
    assert middle.fprop.b == Operand(format=formats.NVFP4)
    assert middle.dgrad == BF16.linear.dgrad


def test_both_parts_one_after_the_other_are_the_whole():
    for first, second in [("forward", "backward"), ("backward", "forward")]:
        recipe = NVFP4.switch(BF16, at=1, part=first).switch(BF16, at=2, part=second)
        assert in_force(recipe.at(2)) == in_force(BF16)
        assert in_force(recipe.at(1)) != in_force(BF16)


def test_switches_act_in_the_order_of_their_steps_and_then_as_listed():
    mxfp8 = recipes.get("mxfp8")
    recipe = NVFP4.switch(BF16, at=20).switch(mxfp8, at=10)
    assert [recipe.at(step) for step in (9, 10, 20)] == [NVFP4, mxfp8, BF16]
    tied = NVFP4.switch(BF16, at=20).switch(mxfp8, at="decay")
    assert tied.at(20, decay_start=20) == mxfp8


def test_layers_left_alone_stay_so_only_when_both_parts_say_so():
    alone = Recipe(name="alone", linear=NVFP4.linear, rules=(Rule(pattern="head", use=None),))
    forward = alone.switch(alone, at=0, part="forward").at(0)
    assert forward.resolve("head").linear is None
    mixed = alone.switch(BF16, at=0, part="forward").at(0)
    assert mixed.resolve("head").linear == LinearRecipe(fprop=BF16.linear.fprop)


def test_a_decay_that_never_comes_is_an_error():
    with pytest.raises(InputError, match="never decays"):
        NVFP4.switch(BF16, at="decay").at(0)


@pytest.mark.parametrize("at", [-1, "decoy", 1.5])
def test_a_switch_at_no_step_is_an_error(at):
    with pytest.raises(InputError, match="at="):
        Switch(at=at, to=BF16)


def test_a_switch_validates_its_part_and_its_target():
    with pytest.raises(InputError, match="did you mean 'forward'"):
        Switch(at=0, part="foward", to=BF16)
    with pytest.raises(InputError, match="has a schedule"):
        Switch(at=0, to=NVFP4.switch(BF16, at=1))


def test_an_empty_recipe_or_name_is_an_error():
    with pytest.raises(InputError, match="says nothing"):
        Recipe(name="empty")
    for name in ("", "two\nlines"):
        with pytest.raises(InputError, match="name="):
            Recipe(name=name, linear=LinearRecipe())


def test_a_forward_part_has_no_forward_part_of_its_own():
    mixed = NVFP4.switch(BF16, at=0, part="forward").at(0)
    with pytest.raises(InputError, match="fprop_from="):
        Recipe(name="nested", linear=LinearRecipe(), fprop_from=mixed)


def test_rules_of_the_forward_part_must_match_too():
    typo = replace(BF16, name="typo", rules=(Rule(pattern="nothing", use=None),))
    recipe = NVFP4.switch(typo, at=0, part="forward").at(0)
    layers = [recipes.Layer(*layer) for layer in LAYERS]
    with pytest.raises(InputError, match="rule 'nothing' of recipe 'typo'"):
        recipe.assign(layers)
