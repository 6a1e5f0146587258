"""Which layer gets what: globs, block positions, last match wins."""

import pytest

from fp4lab import formats
from fp4lab.errors import InputError
from fp4lab.recipes import Blocks, Layer, LinearRecipe, Recipe, Rule

A, B, C = (LinearRecipe.uniform(f) for f in (formats.NVFP4, formats.MXFP4, formats.BF16))


def block_layers(num_blocks: int) -> list[Layer]:
    return [Layer(f"blocks.{i}.mlp.up", i, num_blocks) for i in range(num_blocks)]


def test_the_last_match_wins():
    recipe = Recipe(
        name="test",
        linear=A,
        rules=(
            Rule(pattern="*.mlp.*", use=B),
            Rule(pattern="*.up", use=C),
            Rule(pattern="blocks.1.*", use=None),
        ),
    )
    gate, up = recipe.resolve("blocks.0.mlp.gate"), recipe.resolve("blocks.0.mlp.up")
    assert (gate.linear, gate.rule) == (B, recipe.rules[0])
    assert (up.linear, up.rule) == (C, recipe.rules[1])
    left = recipe.resolve("blocks.1.mlp.up")
    assert left.linear is None
    assert left.rule == recipe.rules[2]
    default = recipe.resolve("blocks.0.attention.qkv")
    assert (default.linear, default.rule) == (A, None)
    assert "default" in default.reason
    assert "'*.up'" in up.reason


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*.head", "model.head", True),
        ("*.head", "head", False),
        ("head|*.head", "head", True),
        ("head|*.head", "model.head", True),
        ("head|*.head", "overhead", False),
        ("blocks.?.mlp", "blocks.1.mlp", True),
        ("blocks.?.mlp", "blocks.12.mlp", False),
        ("blocks.[02].mlp", "blocks.2.mlp", True),
        ("*", "", True),
        ("*.UP", "a.up", False),
        ("a.b", "axb", False),
    ],
)
def test_patterns_are_case_sensitive_globs_over_the_whole_name(pattern, name, matches):
    assert Rule(pattern=pattern).match(Layer(name)) is matches


@pytest.mark.parametrize("pattern", ["", "a|", "|a", "a||b"])
def test_an_empty_pattern_is_an_error(pattern):
    with pytest.raises(InputError, match="pattern="):
        Rule(pattern=pattern)


@pytest.mark.parametrize(
    ("first", "last", "num_blocks", "kept"),
    [
        (0, 4, 20, {16, 17, 18, 19}),
        (2, 8, 62, {0, 1, *range(54, 62)}),
        (0, 8, 52, set(range(44, 52))),
        (1, 0, 3, {0}),
        (0, 2, 2, {0, 1}),
    ],
)
def test_blocks_kept_in_high_precision(first, last, num_blocks, kept):
    recipe = Recipe(name="test", linear=A).keep_high_precision(first=first, last=last)
    resolved = [r.linear for r in recipe.assign(block_layers(num_blocks))]
    assert {i for i, linear in enumerate(resolved) if linear == C} == kept
    assert {i for i, linear in enumerate(resolved) if linear == A} == set(range(num_blocks)) - kept


def test_a_layer_outside_the_blocks_is_not_in_the_last_ones():
    assert not Blocks.last(1).match(Layer("head"))


def test_more_blocks_than_the_model_has_is_an_error():
    recipe = Recipe(name="test", linear=A).keep_high_precision(last=8)
    with pytest.raises(InputError, match=r"last 8 .* more than the 2 blocks .*blocks\.0\.mlp\.up"):
        recipe.assign(block_layers(2))


@pytest.mark.parametrize(("first", "last"), [(0, 0), (-1, 2), (1, -1)])
def test_keeping_nothing_is_an_error(first, last):
    with pytest.raises(InputError, match="keep one block"):
        Recipe(name="test", linear=A).keep_high_precision(first=first, last=last)


def test_blocks_validate():
    with pytest.raises(InputError, match=r"count=1\.5"):
        Blocks.first(1.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="count=True"):
        Blocks.last(True)
    with pytest.raises(InputError, match="count=0"):
        Blocks.first(0)
    with pytest.raises(InputError, match="did you mean 'last'"):
        Blocks("lsat", 1)


def test_without_a_default_an_unmatched_layer_is_named():
    recipe = Recipe(name="strict", rules=(Rule(pattern="*.mlp.*", use=A),))
    assert recipe.resolve("blocks.0.mlp.up").linear == A
    with pytest.raises(InputError, match="layer 'head' matches no rule of recipe 'strict'"):
        recipe.resolve("head")


def test_a_rule_that_matches_nothing_is_named_unless_it_is_optional():
    layers = block_layers(2)
    typo = Rule(pattern="*.mpl.*", use=B)
    with pytest.raises(InputError, match=r"rule '\*\.mpl\.\*' .* none of the 2 linear layers"):
        Recipe(name="test", linear=A, rules=(typo,)).assign(layers)
    optional = Rule(pattern="*.mpl.*", use=B, optional=True)
    assert [r.linear for r in Recipe(name="t", linear=A, rules=(optional,)).assign(layers)] == [
        A,
        A,
    ]


def test_a_rule_that_never_wins_still_matches():
    rules = (Rule(pattern="*.up", use=B), Rule(pattern="*", use=C))
    resolved = Recipe(name="test", linear=A, rules=rules).assign(block_layers(1))
    assert resolved[0].linear == C


def test_a_high_precision_rule_without_blocks_to_keep_is_an_error():
    recipe = Recipe(name="test", linear=A).keep_high_precision(last=1)
    with pytest.raises(InputError, match=r"rule '\*' in last 1"):
        recipe.assign([Layer("0"), Layer("2")])
