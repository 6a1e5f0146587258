"""TOML, JSON and the hash: exact for presets and for anything a user can declare."""

import json
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp4lab import formats, recipes
from fp4lab.errors import InputError
from fp4lab.formats import ELEMENTS, BlockFormat, Hadamard, Rounding
from fp4lab.recipes import Blocks, Gemm, LinearRecipe, Operand, Recipe, Rule, Source, Switch, find
from fp4lab.recipes.places import DGRAD_W
from fp4lab.recipes.published import PUBLISHED

SHIPPED = st.sampled_from([formats.get(name) for name in formats.names()])
NAMES = st.text("abcxyz_0-9 '\"\\é", min_size=1, max_size=8)


@st.composite
def user_formats(draw):
    element = draw(st.sampled_from([e for e in ELEMENTS.values() if e.signed and e.bits <= 8]))
    if draw(st.booleans()):
        element = replace(element, name=draw(NAMES), bias=element.bias + draw(st.integers(-1, 1)))
    block = draw(st.tuples(st.sampled_from([1, 2, 16, 64]), st.integers(1, 64)))
    base = draw(st.sampled_from([formats.NVFP4, formats.NVFP4_4OVER6, formats.FP8_ROW_E4M3]))
    if base is not formats.FP8_ROW_E4M3:
        floor = draw(st.sampled_from([v for v in formats.E4M3.values() if v >= 0]))
        base = base.replace(scale_floor=floor, scale_cap=draw(st.integers(0, 2**24)) * 2.0**-15)
    return base.replace(
        name=draw(NAMES),
        element=element,
        block=block,
        ties=draw(st.sampled_from(formats.Ties)),
        keep_negative_zero=draw(st.booleans()),
    )


@st.composite
def hadamards(draw):
    size = 2 ** draw(st.integers(0, 5))
    signs = st.lists(st.sampled_from([-1, 1]), min_size=size, max_size=size).map(tuple)
    return Hadamard(size, draw(st.one_of(st.none(), st.integers(0, 2**40), signs)))


@st.composite
def linears(draw):
    gemms = {}
    for name in ("fprop", "dgrad", "wgrad"):
        hadamard = draw(st.none() | hadamards()) if name != "fprop" else None
        sides = {}
        for side in "ab":
            fmt = draw(st.none() | SHIPPED | user_formats())
            may_reuse = name != "fprop" and side == "b"
            sides[side] = Operand(
                format=fmt,
                rounding=Rounding.NEAREST if fmt is None else draw(st.sampled_from(Rounding)),
                hadamard=hadamard,
                source=draw(st.sampled_from(Source)) if may_reuse else Source.HIGH_PRECISION,
            )
        gemms[name] = Gemm(**sides)
    return LinearRecipe(**gemms)


RULES = st.builds(
    Rule,
    pattern=NAMES,
    blocks=st.none() | st.builds(Blocks, st.sampled_from(["first", "last"]), st.integers(1, 99)),
    use=st.none() | linears() | SHIPPED.map(LinearRecipe.uniform),
    optional=st.booleans(),
)
PLAIN = st.builds(
    Recipe,
    name=NAMES,
    linear=linears() | SHIPPED.map(LinearRecipe.uniform),
    rules=st.lists(RULES, max_size=2).map(tuple),
    provenance=NAMES,
)
SWITCHES = st.builds(
    Switch,
    at=st.just("decay") | st.integers(0, 10**9),
    part=st.sampled_from(["all", "forward", "backward"]),
    to=PLAIN,
)
RECIPES = st.builds(
    lambda base, schedule, forward: replace(base, schedule=schedule, fprop_from=forward),
    PLAIN,
    st.lists(SWITCHES, max_size=2).map(tuple),
    st.none() | PLAIN,
)


def assert_round_trips(recipe: Recipe) -> None:
    for back in (
        Recipe.from_dict(recipe.to_dict()),
        Recipe.from_toml(recipe.to_toml()),
        Recipe.from_json(recipe.to_json()),
    ):
        assert back == recipe
        assert back.hash == recipe.hash
        assert repr(back) == repr(recipe)


@settings(max_examples=15, deadline=None)
@given(RECIPES)
def test_any_recipe_round_trips(recipe):
    assert_round_trips(recipe)


@pytest.mark.parametrize("recipe", PUBLISHED, ids=lambda recipe: recipe.name)
def test_presets_round_trip(recipe):
    assert_round_trips(recipe)
    assert_round_trips(recipe.switch(recipes.get("bf16"), at="decay", part="forward"))


def test_shipped_formats_are_written_by_name():
    data = recipes.get("nvfp4").to_dict()
    assert data["linear"]["fprop"] == {"a": {"format": "nvfp4"}, "b": {"format": "nvfp4_16x16"}}
    assert data["rules"][0]["use"] == "bf16"


def test_a_changed_format_under_a_known_name_is_written_out():
    fmt = formats.NVFP4.replace(scale_floor=0.5)
    recipe = Recipe(name="test", linear=LinearRecipe.uniform(fmt))
    written = recipe.to_dict()["linear"]["fprop"]["a"]["format"]
    assert written["name"] == "nvfp4"
    assert written["element"] == "e2m1"
    assert written["scale_floor"] == 0.5
    assert_round_trips(recipe)


def test_a_registered_format_of_the_user_is_written_out():
    fmt = formats.register(formats.NVFP4.replace(name="test_user_1x8", block=(1, 8)))
    recipe = Recipe(name="test", linear=LinearRecipe.uniform(fmt))
    assert recipe.to_dict()["linear"]["fprop"]["a"]["format"]["block"] == [1, 8]
    assert_round_trips(recipe)
    by_name = Recipe.from_dict({"name": "test", "linear": "test_user_1x8"})
    assert by_name == recipe


def test_the_hash_is_of_the_numbers():
    recipe = recipes.get("nvfp4")
    assert replace(recipe, name="other", provenance="none").hash == recipe.hash
    renamed = formats.NVFP4.replace(name="mine")
    assert (
        Recipe(name="a", linear=LinearRecipe.uniform(renamed)).hash
        == replace(recipes.get("nvfp4_base"), rules=()).hash
    )
    hashes = [recipe.hash for recipe in PUBLISHED]
    assert len(set(hashes)) == len(hashes)


FMT = formats.NVFP4
CHANGED_FORMATS = [
    FMT.replace(block=(1, 8)),
    FMT.replace(scale_floor=2.0**-9),
    FMT.replace(ties=formats.Ties.AWAY),
    FMT.replace(scale=formats.UE5M3),
    FMT.replace(element=formats.INT4),
]


@pytest.mark.parametrize(
    "operand",
    [
        *(Operand(format=fmt) for fmt in CHANGED_FORMATS),
        Operand(format=FMT, rounding=Rounding.STOCHASTIC_8),
        Operand(format=FMT, rounding=Rounding.STOCHASTIC_32),
        Operand(source=Source.FORWARD),
        Operand(),
    ],
)
def test_every_numeric_field_counts_in_the_hash_and_in_the_diff(operand):
    base = recipes.get("nvfp4_base")
    linear = LinearRecipe.from_operands({**base.linear.operands(), DGRAD_W: operand})
    changed = replace(base, linear=linear)
    assert changed.hash != base.hash
    assert "linear.dgrad.b" in base.diff(changed)


def test_rules_and_schedule_count_in_the_hash():
    base, bf16 = recipes.get("nvfp4_last4"), recipes.get("bf16")
    other = [
        base.keep_high_precision(first=1),
        replace(base, rules=base.rules[:1]),
        replace(base, rules=base.rules[::-1]),
        *(base.switch(bf16, at=at, part=p) for at in (1, "decay") for p in ("all", "forward")),
        base.switch(bf16, at=1, part="forward").at(1),
    ]
    assert len({base.hash, *(recipe.hash for recipe in other)}) == 1 + len(other)


def test_the_hash_is_the_same_in_every_process_and_version():
    """A changed value means that old results no longer compare: never change a field's default."""
    assert recipes.get("nvfp4").hash == (
        "973ed138eb8be85ef7d4903801b4e976c36c981b483680a82785d1ebd1174242"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "not valid TOML"),
        ("linear = 'nvfp4'", "recipe.name is missing"),
        ("name = 'x'\nlinear = 'nvfp5'", "linear: recipe='nvfp5' is not known"),
        ("name = 'x'\nlinear = 3", r"recipe\.linear=3 should be a table"),
        (
            "name = 'x'\n[linear.fprop.a]\nfmt = 'nvfp4'",
            r"field of recipe\.linear\.fprop\.a='fmt' .*'format'",
        ),
        ("name = 'x'\nlinear = 'bf16'\n[[schedule]]\nat = 'now'\nto = 'bf16'", "schedule"),
        ("name = 'x'\n[linear.dgrad.a]\nsource = 'forward'", "dY has no copy"),
        ("name = 'x'\n[linear.fprop.a.format]\nname = 'f'\nelement = 'e9m9'", "element='e9m9'"),
    ],
)
def test_bad_files_are_named_by_what_is_wrong(text, message):
    with pytest.raises(InputError, match=message):
        Recipe.from_toml(text)


def test_bad_json():
    with pytest.raises(InputError, match="not valid JSON"):
        Recipe.from_json("{")
    with pytest.raises(InputError, match=r"recipe=\[\] should be a table"):
        Recipe.from_json("[]")


def test_recipes_inside_a_recipe_may_be_named():
    text = "name = 'x'\nlinear = 'nvfp4'\n[[schedule]]\nat = 'decay'\nto = 'nvfp4-rht'\n"
    assert Recipe.from_toml(text).schedule[0].to == recipes.get("nvfp4-rht")


def test_files_are_read_by_their_suffix(tmp_path):
    recipe = recipes.get("nvfp4")
    (tmp_path / "a.toml").write_text(recipe.to_toml(), encoding="utf-8")
    (tmp_path / "a.json").write_text(recipe.to_json(), encoding="utf-8")
    assert recipes.read(tmp_path / "a.toml") == recipes.read(str(tmp_path / "a.json")) == recipe
    with pytest.raises(InputError, match=r"\.toml or \.json"):
        recipes.read(tmp_path / "a.yaml")
    (tmp_path / "b.toml").write_text("name = 3", encoding="utf-8")
    with pytest.raises(InputError, match=r"b\.toml: recipe\.name=3"):
        recipes.read(tmp_path / "b.toml")
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"c\.toml"):
        recipes.read(tmp_path / "c.toml")
    with pytest.raises(
        InputError, match="does not exist; correct it, or give the name of a recipe"
    ):
        recipes.read(tmp_path / "missing.toml")


def test_a_recipe_by_itself_by_name_or_from_a_file(tmp_path):
    recipe = recipes.get("nvfp4")
    for suffix, text in ((".toml", recipe.to_toml()), (".json", recipe.to_json())):
        (tmp_path / f"mine{suffix}").write_text(text, encoding="utf-8")
        assert find(str(tmp_path / f"mine{suffix}")) == recipe
    assert find("nvfp4") == find(recipe) == recipe
    with pytest.raises(InputError, match=r"absent.toml' of a recipe does not exist; correct it,"):
        find(str(tmp_path / "absent.toml"))
    with pytest.raises(InputError, match=r"recipe=PosixPath.* is not a Recipe; use .* name"):
        find(tmp_path / "mine.toml")


DECLARED = """
name = "mine"
linear = "nvfp4_1x32_last1+sr.dgrad"

[[formats]]
name = "nvfp4_1x32"
element = "e2m1"
block = [1, 32]
scale = "e4m3"
level = "tensor"

[[formats]]
name = "own_fp8"
element = "e4m3"

[[rules]]
pattern = "head"
use = "own_fp8"

[[rules]]
pattern = "neck"
[rules.use.fprop]
a = { format = "nvfp4_1x32" }

[[schedule]]
at = 10
to = "nvfp4_1x32_first2"
"""


def test_formats_that_a_file_declares(tmp_path):
    wide = formats.NVFP4.replace(name="nvfp4_1x32", block=(1, 32))
    recipe = Recipe.from_toml(DECLARED)
    uniform = LinearRecipe.uniform(wide)
    assert recipe.linear == Recipe(name="u", linear=uniform).with_("sr", where="dgrad").linear
    assert recipe.linear.dgrad.a == Operand(format=wide, rounding=Rounding.STOCHASTIC_8)
    assert recipe.rules[0].use.fprop.a.format == BlockFormat(name="own_fp8", element=formats.E4M3)
    assert recipe.rules[1].use.fprop.a.format == wide
    assert recipe.schedule[0].to.resolve("up", 2, 4).linear == uniform
    assert_round_trips(recipe)
    # in this file alone
    assert "nvfp4_1x32" not in formats.names()
    with pytest.raises(InputError, match="'nvfp4_1x32' is not known"):
        recipes.get("nvfp4_1x32")
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(tomllib.loads(DECLARED)), encoding="utf-8")
    assert recipes.read(path) == recipe


@pytest.mark.parametrize(
    ("formats_", "linear", "message"),
    [
        ("[[formats]]\nelement = 'e2m1'", "bf16", r"formats\[0\]\.name is missing"),
        ("[[formats]]\nname = 'f'\nelement = 'e9'", "f", r"formats\[0\]\.element: element='e9'"),
        ("[[formats]]\nname = 'f'\nelement = 'e2m1'\nblck = 3", "f", r"formats\[0\]='blck'"),
        ("[formats]\nname = 'f'\nelement = 'e2m1'", "f", r"formats=.* should be a list"),
        ("[[formats]]\nname = 'f-g'\nelement = 'e2m1'", "bf16", r"'f-g' may hold letters"),
        ("[[formats]]\nname = 'nvfp4'\nelement = 'e2m1'", "nvfp4", r"name='nvfp4' is taken"),
        ("[[formats]]\nname = 'mxfp8'\nelement = 'e4m3'", "mxfp8", r"name='mxfp8' is taken"),
        (
            "[[formats]]\nname = 'f'\nelement = 'e2m1'\n[[formats]]\nname = 'f'\nelement = 'e4m3'",
            "f",
            r"formats\[1\]\.name='f' is taken",
        ),
        ("[[formats]]\nname = 'mine'\nelement = 'e2m1'", "min", "did you mean 'mine'"),
    ],
)
def test_bad_declarations_are_named(formats_, linear, message):
    with pytest.raises(InputError, match=message):
        Recipe.from_toml(f"name = 'x'\nlinear = '{linear}'\n{formats_}")


def test_json_is_plain():
    assert json.loads(recipes.get("mxfp4").to_json()) == recipes.get("mxfp4").to_dict()
    assert isinstance(recipes.get("mxfp4").linear.fprop.b.format, BlockFormat)


def test_numerics_by_the_name_of_a_recipe():
    text = """
        name = "mine"
        linear = "nvfp4-rht"
        [[rules]]
        pattern = "*.mlp.*"
        use = "mxfp6_e2m3"
    """
    recipe = Recipe.from_toml(text)
    assert recipe.linear == recipes.get("nvfp4-rht").linear
    assert recipe.rules[0].use == LinearRecipe.uniform(formats.MXFP6_E2M3)
    assert_round_trips(recipe)
    assert '"nvfp4"' not in recipe.to_toml().splitlines()[1]


def test_a_format_is_a_recipe_of_its_own():
    recipe = recipes.get("mxfp6_e2m3_last2")
    assert recipe.resolve("mlp", 0, 4).linear == LinearRecipe.uniform(formats.MXFP6_E2M3)
    assert recipe.resolve("mlp", 3, 4).linear == LinearRecipe.uniform(formats.BF16)
    assert recipe.resolve("lm_head").linear == LinearRecipe.uniform(formats.BF16)
    assert recipes.get("nvfp4").linear != LinearRecipe.uniform(formats.NVFP4)
    with pytest.raises(InputError, match="'mxfp6_e2m' is not known; did you mean 'mxfp6_e2m3'"):
        recipes.get("mxfp6_e2m")
