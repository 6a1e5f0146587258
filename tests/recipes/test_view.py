"""Recipes as people see them."""

from dataclasses import replace

from fp4lab import formats, recipes
from fp4lab.recipes import LinearRecipe, Recipe
from fp4lab.recipes.tables import html_table, text_table


def test_the_table_has_a_cell_for_every_operand():
    lines = str(recipes.get("nvfp4")).splitlines()
    assert lines[0] == f"recipe nvfp4 ({recipes.get('nvfp4').hash[:12]})"
    assert lines[3].split() == ["X", "nvfp4", "-", "nvfp4", "RHT16"]
    assert lines[4].split() == ["W", "nvfp4_16x16", "as", "in", "fprop", "-"]
    assert lines[5].split() == ["dY", "-", "nvfp4", "SR8", "nvfp4", "SR8", "RHT16"]
    assert "bf16 everywhere" in lines[6]


def test_rules_and_schedule_are_shown():
    recipe = recipes.get("nvfp4_last4").switch(recipes.get("bf16"), at="decay", part="forward")
    text = str(recipe)
    assert "'*' in last 4: bf16 everywhere" in text
    assert "from learning-rate decay: forward as in bf16" in text
    switched = str(recipe.at(0, decay_start=0))
    assert "fprop of every layer as in bf16" in switched
    assert switched.splitlines()[3].split()[:2] == ["X", "bf16"]


def test_html_is_escaped():
    recipe = replace(recipes.get("nvfp4"), name="<b>")
    assert "<b>&lt;b&gt;</b>" in recipe._repr_html_()
    assert recipe._repr_html_().count("<tr>") == 4
    assert "<td>nvfp4_16x16</td>" in recipe.linear._repr_html_()


def test_diff_lists_the_leaves_that_differ():
    assert recipes.get("nvfp4").diff(recipes.get("nvfp4-sr")).splitlines() == [
        "nvfp4 -> nvfp4-sr",
        "  linear.dgrad.a.rounding: stochastic8 -> nearest",
        "  linear.wgrad.a.rounding: stochastic8 -> nearest",
    ]
    assert recipes.get("nvfp4").diff(recipes.get("nvfp4-signs")).splitlines()[1:] == [
        f"  linear.wgrad.{side}.hadamard: 16, signs +++-+------+-+-- -> 16, no signs"
        for side in "ab"
    ]


def test_diff_of_rules_and_of_changed_formats():
    last4 = recipes.get("nvfp4").diff(recipes.get("nvfp4_last4"))
    assert "rules[1].blocks.count: - -> 4" in last4
    assert "linear" not in last4
    fmt = formats.NVFP4.replace(scale_floor=0.5)
    a, b = (Recipe(name="x", linear=LinearRecipe.uniform(f)) for f in (formats.NVFP4, fmt))
    assert '"scale_floor": 0.5' in a.diff(b)


def test_diff_of_equal_numbers():
    recipe = recipes.get("nvfp4")
    assert recipe.diff(replace(recipe, name="other")) == "no numeric difference"


def test_tables_align_and_escape():
    assert (
        text_table(["a", "b"], [["long", "x"], ["", "y"]]) == "a     b\n----  -\nlong  x\n      y"
    )
    assert html_table(["a"], [["<"]]).count("&lt;") == 1
