"""The single-technique ablations of arXiv 2509.25149, and that each changes what it says only."""

from itertools import pairwise

import pytest

from fp4lab import formats, recipes
from fp4lab.errors import InputError
from fp4lab.formats import NVFP4_SIGNS, Hadamard, Rounding
from fp4lab.recipes import LinearRecipe, Operand, Recipe, Rule, Source
from fp4lab.recipes.places import DGRAD_W, TENSORS
from fp4lab.recipes.techniques import TECHNIQUES, WHERE, remove

ROW, SQUARE = Operand(format=formats.NVFP4), Operand(format=formats.NVFP4_16X16)
BF16 = Operand(format=formats.BF16)
REUSED = Operand(source=Source.FORWARD)
SR, NEAREST = Rounding.STOCHASTIC_8, Rounding.NEAREST


def operands(name: str) -> dict[str, Operand]:
    linear = recipes.get(name).linear
    assert linear is not None
    return {str(place): operand for place, operand in linear.operands().items()}


def changes(old: str, new: str) -> dict[str, Operand]:
    before = operands(old)
    return {place: op for place, op in operands(new).items() if op != before[place]}


def test_figure_4_removes_one_technique_at_a_time():
    full = "nvfp4_first2_last8"
    assert changes(full, f"{full}-sr") == {
        "dgrad.a": ROW,
        "wgrad.a": Operand(format=formats.NVFP4, hadamard=Hadamard(16, NVFP4_SIGNS)),
    }
    assert changes(full, f"{full}-rht") == {
        "wgrad.a": Operand(format=formats.NVFP4, rounding=SR),
        "wgrad.b": ROW,
    }
    # each orientation from high precision along its own axis
    assert changes(full, f"{full}-2d") == {"fprop.b": ROW, "dgrad.b": ROW}


def test_figure_8_adds_them_up_to_the_whole_recipe():
    steps = ["nvfp4_base_last4"]
    for technique in ("2d", "rht", "sr"):
        steps.append(f"{steps[-1]}+{technique}")
    hashes = [recipes.get(step).hash for step in steps]
    assert len(set(hashes)) == 4
    assert hashes[-1] == recipes.get("nvfp4_last4").hash
    assert all(changes(old, new) for old, new in pairwise(steps))


@pytest.mark.parametrize(
    ("where", "rounded"),
    [
        ("dy", {"dgrad.a", "wgrad.a"}),
        ("x", {"fprop.a", "wgrad.b"}),
        ("w", {"fprop.b", "dgrad.b"}),
        ("backward", {"dgrad.a", "dgrad.b", "wgrad.a", "wgrad.b"}),
    ],
)
def test_figure_10_stochastic_rounding_of_some_tensors(where, rounded):
    name = f"nvfp4_base_last4+sr.{where}"
    assert {p for p, op in operands(name).items() if op.rounding == SR} == rounded


@pytest.mark.parametrize("gemm", ["fprop", "dgrad", "wgrad"])
def test_figure_11_transform_of_one_product(gemm):
    turned = {p for p, op in operands(f"nvfp4_base_last4+rht.{gemm}").items() if op.hadamard}
    assert turned == {f"{gemm}.a", f"{gemm}.b"}


@pytest.mark.parametrize("size", [2, 4, 128])
def test_figure_12_other_sizes_of_the_transform(size):
    changed = changes("nvfp4", f"nvfp4+rht{size}")
    assert set(changed) == {"wgrad.a", "wgrad.b"}
    assert {op.hadamard for op in changed.values()} == {Hadamard(size, signs=0)}


def test_figure_13_no_signs():
    changed = changes("nvfp4", "nvfp4-signs")
    assert {op.hadamard for op in changed.values()} == {Hadamard(16, signs=None)}
    assert recipes.get("nvfp4-signs+signs").hash == recipes.get("nvfp4").hash


def test_figure_14_only_weights_or_only_activations():
    weights = "nvfp4_base-quantization.x-quantization.dy"
    assert operands(weights) == {
        "fprop.a": BF16,
        "fprop.b": ROW,
        "dgrad.a": BF16,
        "dgrad.b": ROW,
        "wgrad.a": BF16,
        "wgrad.b": BF16,
    }
    assert changes(weights, f"{weights}+reuse") == {"dgrad.b": REUSED}
    assert changes(weights, f"{weights}+2d") == {"fprop.b": SQUARE, "dgrad.b": REUSED}
    activations = "nvfp4_base-quantization.w-quantization.dy"
    assert changes(activations, f"{activations}+reuse.x") == {"wgrad.b": REUSED}


def test_a_forward_or_a_backward_alone():
    forward = operands("nvfp4-quantization.backward")
    assert (forward["fprop.a"], forward["fprop.b"]) == (ROW, SQUARE)
    assert {op for place, op in forward.items() if place[0] != "f"} == {BF16}
    # dgrad keeps W's numbers although fprop no longer makes them
    assert changes("nvfp4", "nvfp4-quantization.forward") == {
        "fprop.a": BF16,
        "fprop.b": BF16,
        "dgrad.b": SQUARE,
    }


def test_a_tensor_in_high_precision_takes_its_reused_copy_along():
    changed = changes("nvfp4", "nvfp4-quantization.w")
    assert changed == {"fprop.b": BF16, "dgrad.b": BF16}


def test_a_transform_goes_when_nothing_in_its_product_is_quantized():
    wgrad = recipes.get("nvfp4-quantization.wgrad").linear.wgrad
    assert (wgrad.a, wgrad.b) == (BF16, BF16)
    half = recipes.get("nvfp4-quantization.x").linear.wgrad
    assert half.a.hadamard == half.b.hadamard == Hadamard(16, NVFP4_SIGNS)


def test_2d_blocks_of_other_formats():
    assert operands("mxfp4-2d")["fprop.b"] == Operand(format=formats.MXFP4)
    assert operands("fp8_block-2d")["dgrad.b"] == Operand(format=formats.FP8_1X128_E4M3)
    assert operands("mxfp8+2d")["fprop.b"].format.block == (32, 32)
    assert operands("nvfp4-2d.fprop")["dgrad.b"] == REUSED


def test_stochastic_rounding_of_a_reused_copy():
    # the copy itself is rounded: dgrad goes on reusing it
    assert changes("nvfp4", "nvfp4+sr.w") == {
        "fprop.b": Operand(format=formats.NVFP4_16X16, rounding=SR)
    }
    # only dgrad: quantized anew
    assert operands("nvfp4+sr.dgrad")["dgrad.b"] == Operand(format=formats.NVFP4_16X16, rounding=SR)


def test_a_transform_of_a_reused_copy_quantizes_anew():
    dgrad = recipes.get("nvfp4+rht.dgrad").linear.dgrad
    assert dgrad.b == Operand(format=formats.NVFP4_16X16, hadamard=Hadamard(16, NVFP4_SIGNS))


def test_reuse_of_a_requantized_copy():
    linear = recipes.get("nvfp4_base").linear
    fresh = Operand(format=formats.NVFP4, source=Source.FORWARD)
    linear = LinearRecipe.from_operands({**linear.operands(), DGRAD_W: fresh})
    recipe = Recipe(name="requantized", linear=linear)
    assert recipe.without("reuse").linear == recipes.get("nvfp4_base").linear


def used_techniques():
    for name in ("nvfp4", "nvfp4_base", "mxfp4", "mxfp8", "fp8_block"):
        for technique in TECHNIQUES:
            for where in (None, *WHERE):
                linear = recipes.get(name).linear
                if remove(linear, technique, where=where) != linear:
                    yield name, technique, where


def test_what_was_taken_out_is_not_there_any_more():
    used = list(used_techniques())
    assert len(used) > 50
    for name, technique, where in used:
        once = recipes.get(name).without(technique, where=where)
        assert once.hash != recipes.get(name).hash
        with pytest.raises(InputError, match="not used"):
            once.without(technique, where=where)


@pytest.mark.parametrize("technique", ["rht", "sr", "2d"])
def test_adding_twice_is_an_error(technique):
    with pytest.raises(InputError, match=f"technique='{technique}' .* used already"):
        recipes.get("nvfp4").with_(technique)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nvfp4-rth", "did you mean 'rht'"),
        ("nvfp4-rht.wgard", "did you mean 'wgrad'"),
        ("nvfp4+quantization", "technique='quantization' can only be left out"),
        ("nvfp4-rht16", "leave transforms out by 'rht'"),
        ("nvfp4_base+reuse.fprop", "used already, or cannot be used there"),
        ("mine.toml", r"is a file; read it by fp4lab\.recipes\.read"),
        ("bf16-rht", "changes nothing in recipe 'bf16'"),
        ("nvfp4_base-sr", "not used"),
        ("nvfp4+rht3", "size=3"),
        ("nvfp4+rht.fprop", "fprop uses W after a Hadamard transform"),
    ],
)
def test_what_cannot_be_changed_is_named(name, message):
    with pytest.raises(InputError, match=message):
        recipes.get(name)


def test_layers_in_high_precision_stay_as_they_are():
    kept = LinearRecipe.uniform(formats.BF16)
    recipe = recipes.get("nvfp4_base_last4-quantization.x+rht.fprop")
    assert len(recipe.rules) == 2
    assert all(rule.use == kept for rule in recipe.rules)


def test_rules_with_quantized_layers_change_too():
    nvfp4 = recipes.get("nvfp4").linear
    recipe = Recipe(name="test", linear=nvfp4, rules=(Rule(pattern="a", use=nvfp4),))
    changed = recipe.without("sr")
    assert changed.linear == changed.rules[0].use == recipes.get("nvfp4-sr").linear


def test_every_place_names_operands():
    linear = recipes.get("nvfp4_base").linear
    for where in WHERE:
        changed = recipes.get("nvfp4_base").without("quantization", where=where).linear
        assert changed != linear
    assert set(TENSORS) < set(WHERE)
