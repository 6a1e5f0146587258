"""What the numerics of a linear layer may and may not say."""

from dataclasses import replace

import pytest

from fp4lab import formats, recipes
from fp4lab.errors import InputError
from fp4lab.formats import Hadamard, Rounding
from fp4lab.recipes import Gemm, LinearRecipe, Operand, Recipe, Rule, Source
from fp4lab.recipes.operands import is_symmetric
from fp4lab.recipes.places import DGRAD_DY, FPROP_W, FPROP_X, PLACES, WGRAD_DY

ROW = Operand(format=formats.NVFP4)
SQUARE = Operand(format=formats.NVFP4_16X16)
REUSED = Operand(source=Source.FORWARD)


def test_the_default_leaves_everything_as_it_is():
    linear = LinearRecipe()
    assert not linear.is_quantized
    assert set(linear.operands().values()) == {Operand()}


def test_operands_and_from_operands_are_inverse():
    distinct = {
        place: Operand(format=formats.get(name))
        for place, name in zip(PLACES, formats.names(), strict=False)
    }
    assert len(set(distinct.values())) == len(PLACES)
    linear = LinearRecipe.from_operands(distinct)
    assert linear.operands() == distinct
    assert linear.dgrad.a == distinct[DGRAD_DY]


@pytest.mark.parametrize("rounding", [Rounding.STOCHASTIC_8, Rounding.STOCHASTIC_32])
def test_rounding_without_a_format_is_an_error(rounding):
    with pytest.raises(InputError, match="nothing is rounded"):
        Operand(rounding=rounding)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (Hadamard(16), None),
        (None, Hadamard(16)),
        (Hadamard(16), Hadamard(32)),
        (Hadamard(16, signs=1), Hadamard(16, signs=2)),
    ],
)
def test_transforms_that_do_not_cancel_are_an_error(a, b):
    with pytest.raises(InputError, match="do not cancel"):
        Gemm(a=Operand(hadamard=a), b=Operand(hadamard=b))


@pytest.mark.parametrize("rounding", list(Rounding))
@pytest.mark.parametrize("place", PLACES)
def test_stochastic_rounding_is_allowed_anywhere(place, rounding):
    operands = LinearRecipe.uniform(formats.NVFP4).operands()
    operands[place] = replace(operands[place], rounding=rounding)
    assert LinearRecipe.from_operands(operands).operand(place).rounding == rounding


@pytest.mark.parametrize("place", [FPROP_X, FPROP_W, DGRAD_DY, WGRAD_DY])
def test_only_x_and_w_of_the_backward_have_a_forward_copy(place):
    operands = {**LinearRecipe().operands(), place: REUSED}
    with pytest.raises(InputError, match=rf"source='forward' of {place.gemm}\.{place.side}"):
        LinearRecipe.from_operands(operands)


def test_a_transformed_forward_copy_cannot_be_reused():
    turned = Gemm(a=replace(ROW, hadamard=Hadamard()), b=replace(ROW, hadamard=Hadamard()))
    with pytest.raises(InputError, match="Hadamard transform along another axis"):
        LinearRecipe(fprop=turned, dgrad=Gemm(a=ROW, b=REUSED))


@pytest.mark.parametrize(
    ("name", "symmetric"),
    [
        ("bf16", True),
        ("nvfp4", False),
        ("nvfp4_16x16", True),
        ("nvfp4_rowwise", False),
        ("mxfp4", False),
        ("fp8_tensor_e4m3", True),
        ("fp8_row_e4m3", False),
        ("fp8_128x128_e4m3", True),
    ],
)
def test_symmetric_formats(name, symmetric):
    assert is_symmetric(formats.get(name)) is symmetric


def test_square_blocks_with_a_scale_per_row_are_not_symmetric():
    fmt = formats.NVFP4_ROWWISE.replace(name="test_rows_1x1", block=(1, 1))
    assert not is_symmetric(fmt)


def test_another_forward_keeps_the_numbers_of_a_reused_square_copy():
    old = LinearRecipe(fprop=Gemm(a=ROW, b=SQUARE), dgrad=Gemm(a=ROW, b=REUSED))
    new = LinearRecipe.uniform(formats.BF16).with_backward_of(old)
    assert new.fprop == LinearRecipe.uniform(formats.BF16).fprop
    assert new.dgrad == Gemm(a=ROW, b=SQUARE)
    assert new.wgrad == old.wgrad


def test_the_same_forward_keeps_reuse():
    old = LinearRecipe(fprop=Gemm(a=ROW, b=ROW), dgrad=Gemm(a=ROW, b=REUSED))
    assert LinearRecipe(fprop=old.fprop).with_backward_of(old) == old


@pytest.mark.parametrize(
    ("weight", "backward"),
    [
        (ROW, REUSED),  # 1x16 along K is not 1x16 along N
        (SQUARE, Operand(format=formats.NVFP4, source=Source.FORWARD)),
    ],
)
def test_a_copy_that_high_precision_cannot_give_is_an_error(weight, backward):
    old = LinearRecipe(fprop=Gemm(a=ROW, b=weight), dgrad=Gemm(a=ROW, b=backward))
    with pytest.raises(InputError, match=r"dgrad\.b needs the copy of W"):
        LinearRecipe().with_backward_of(old)


def test_a_rotated_reused_copy_cannot_be_detached():
    wgrad = Gemm(a=replace(ROW, hadamard=Hadamard()), b=replace(REUSED, hadamard=Hadamard()))
    old = LinearRecipe(fprop=Gemm(a=SQUARE, b=ROW), wgrad=wgrad)
    with pytest.raises(InputError, match=r"wgrad\.b needs the copy of X"):
        LinearRecipe().with_backward_of(old)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Operand(format="nvfp4"), ["format='nvfp4'", "formats.get"]),
        (lambda: Operand(hadamard=16), ["hadamard=16", "Hadamard(size)"]),
        (lambda: Operand(format=formats.NVFP4, rounding="sr"), ["rounding='sr'", "Rounding"]),
        (lambda: Gemm(a=formats.NVFP4), ["a=BlockFormat", "recipes.Operand"]),
        (lambda: LinearRecipe(fprop=ROW), ["fprop=Operand", "recipes.Gemm"]),
        (lambda: Rule(use="bf16"), ["use='bf16'", "recipes.get(name).linear"]),
        (lambda: Rule(use=recipes.get("bf16")), ["use=Recipe", "LinearRecipe"]),
        (lambda: Rule(pattern=None), ["pattern=None", "glob"]),
        (lambda: Recipe(name="mine", linear=formats.NVFP4), ["linear=BlockFormat", "uniform"]),
        (lambda: Recipe(name="mine", rules=[Rule()]), ["rules=", "tuple of Rule"]),
        (lambda: recipes.get("nvfp4").switch("bf16", at=3), ["to='bf16'", "recipes.get"]),
    ],
)
def test_what_is_no_object_of_its_kind_is_an_error(make, words):
    with pytest.raises(InputError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "differ"),
    [
        ("bf16", False),
        ("nvfp4", False),
        ("mxfp4", False),
        ("fp8_tensor", False),
        ("fp8_block", False),
        ("mxfp8", True),
        ("nvfp4_base", True),
        ("nvfp4-2d", True),
    ],
)
def test_whether_both_passes_multiply_one_weight(name, differ):
    """Edge case B53: one-dimensional blocks give dgrad another weight than fprop."""
    recipe = recipes.get(name)
    assert recipe.linear.weights_differ == differ
    assert ("rounded anew in dgrad" in str(recipe)) == differ
    assert not LinearRecipe().weights_differ
