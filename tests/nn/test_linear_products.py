"""The three products of a linear layer: shapes, dtypes, and the operands a recipe asks for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import fp4lab
from fp4lab import formats as f
from fp4lab import nn, recipes
from fp4lab.formats import BlockFormat, Hadamard, Rounding
from fp4lab.recipes import Gemm, LinearRecipe, Operand, Source
from fp4lab.recipes.places import DGRAD_DY, DGRAD_W, FPROP_W, FPROP_X, WGRAD_DY, WGRAD_X, Place
from tests.golden import arrays, catalogue

M, N, K = 37, 23, 53
PLAIN = LinearRecipe()
NAMES = ["nvfp4", "nvfp4_base", "mxfp4", "mxfp8", "fp8_tensor", "fp8_block"]


def layer(recipe: LinearRecipe | None, shape: tuple[int, int] = (K, N), **how: Any) -> nn.Linear:
    return nn.Linear(*shape, recipe=recipe, **how)


def run(linear: nn.Linear, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Y, dX, dW."""
    x = x.clone().requires_grad_()
    linear.zero_grad()
    y = linear(x)
    y.backward(dy)
    assert x.grad is not None
    assert linear.weight.grad is not None
    return y.detach(), x.grad, linear.weight.grad


def test_three_primes_against_float64() -> None:
    """Edge case B52: M, N and K differ, so that no product can be transposed unseen."""
    linear = layer(PLAIN)
    x, dy = torch.randn(M, K), torch.randn(M, N)
    y, dx, dw = run(linear, x, dy)
    w, b = linear.weight.detach().double(), linear.bias.detach().double()
    for result, exact, size, length in (
        (y, x.double() @ w.t() + b, x.double().abs() @ w.abs().t() + b.abs(), K),
        (dx, dy.double() @ w, dy.double().abs() @ w.abs(), N),
        (dw, dy.double().t() @ x.double(), dy.double().abs().t() @ x.double().abs(), M),
    ):
        assert result.shape == exact.shape
        assert ((result - exact).abs() <= (length + 2) * 2.0**-24 * size).all()
    assert linear.bias.grad is not None
    assert torch.allclose(linear.bias.grad, dy.sum(0), rtol=0, atol=M * 2.0**-22)


def test_gradients_are_those_of_finite_differences() -> None:
    """Edge case B50: quantization off. The layer is linear in x, W and b, so any step is exact."""
    linear = layer(PLAIN, (5, 3)).double()
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(linear, {"weight": weight, "bias": bias}, (x,))

    arguments = (x, linear.weight, linear.bias)
    assert torch.autograd.gradcheck(function, arguments, eps=0.5, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_quantized_layer_is_near_the_exact_one(name: str) -> None:
    """Each product has the error of two operands; 1.6 is twice the relative MSE of the worst."""
    linear = layer(recipes.get(name).linear, (128, 256))
    x, dy = torch.randn(384, 128), torch.randn(384, 256)
    y, dx, dw = run(linear, x, dy)
    w, b = linear.weight.detach().double(), linear.bias.detach().double()
    worst = {"nvfp4": 0.0236, "nvfp4_base": 0.0091, "mxfp4": 0.026}.get(name, 0.0012)
    for result, exact in (
        (y - b, x.double() @ w.t()),
        (dx, dy.double() @ w),
        (dw, dy.double().t() @ x.double()),
    ):
        ratio = ((result - exact).square().sum() / exact.square().sum()).item()
        assert 0 < ratio < 1.6 * 2 * worst, name
        gain = ((result * exact).sum() / exact.square().sum()).item()
        assert abs(gain - 1) < 0.05


def quantized(x: Tensor, operand: Operand, place: Place, **how: Any) -> Any:
    assert operand.format is not None
    return fp4lab.quantize(
        x,
        operand.format,
        rounding=operand.rounding,
        hadamard=operand.hadamard,
        stream=place.stream,
        **how,
    )


def by_hand(linear: nn.Linear, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same products through the functional face; FORWARD operands are left out."""
    recipe, w = linear.recipe, linear.weight.detach()
    how: dict[str, Any] = {"noise": linear.noise, "ragged": linear.ragged}
    fprop, dgrad, wgrad = recipe.fprop, recipe.dgrad, recipe.wgrad
    y = fp4lab.scaled_matmul(
        quantized(x, fprop.a, FPROP_X, **how), quantized(w, fprop.b, FPROP_W, **how)
    )
    dx = fp4lab.scaled_matmul(
        quantized(dy, dgrad.a, DGRAD_DY, **how),
        quantized(w, dgrad.b, DGRAD_W, axis=-2, **how),
    )
    dw = fp4lab.scaled_matmul(
        quantized(dy, wgrad.a, WGRAD_DY, axis=-2, **how),
        quantized(x, wgrad.b, WGRAD_X, axis=-2, **how),
    )
    return y, dx, dw


BY_HAND = {
    "nvfp4 1x16": LinearRecipe.uniform(f.NVFP4),
    "nvfp4 per row": LinearRecipe.uniform(f.NVFP4_ROWWISE),
    "fp8 per row": LinearRecipe.uniform(f.FP8_ROW_E5M2),
    "fp8 128x128": LinearRecipe.uniform(f.FP8_128X128_E4M3),
    "bf16": LinearRecipe.uniform(f.BF16),
    "transformed and stochastic": LinearRecipe(
        fprop=Gemm(a=Operand(format=f.MXFP4), b=Operand(format=f.NVFP4_16X16)),
        dgrad=Gemm(
            a=Operand(format=f.NVFP4, rounding=Rounding.STOCHASTIC_8),
            b=Operand(format=f.MXFP8_E4M3, rounding=Rounding.STOCHASTIC_32),
        ),
        wgrad=Gemm(
            a=Operand(format=f.NVFP4, rounding=Rounding.STOCHASTIC_8, hadamard=Hadamard(16, 3)),
            b=Operand(format=f.MXFP4, hadamard=Hadamard(16, 3)),
        ),
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_the_products_are_those_of_the_functional_face(name: str) -> None:
    linear = layer(BY_HAND[name], (K, N), bias=False, ragged="pad", layer_name="up", seed=4)
    linear.set_step(7, 1)
    x, dy = torch.randn(48, K), torch.randn(48, N)
    for result, expected in zip(run(linear, x, dy), by_hand(linear, x, dy), strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_golden_products_of_transformer_engine(dtype: str) -> None:
    """The layer's own forward and backward, under its NVFP4 recipe rounded to nearest."""
    prefix = {"f32": "", "bf16": "bf16_"}[dtype]
    x, w, dy = (catalogue.recorded_input(prefix + n) for n in ("normal", "heavy", "outliers"))
    dy = dy[:, :64].contiguous()
    rht = Hadamard(16, f.NVFP4_SIGNS)
    recipe = LinearRecipe(
        fprop=Gemm(a=Operand(format=f.NVFP4), b=Operand(format=f.NVFP4_16X16)),
        dgrad=Gemm(a=Operand(format=f.NVFP4), b=Operand(source=Source.FORWARD)),
        wgrad=Gemm(
            a=Operand(format=f.NVFP4, hadamard=rht), b=Operand(format=f.NVFP4, hadamard=rht)
        ),
    )
    linear = layer(recipe, (128, 64), bias=False)
    with torch.no_grad():
        linear.weight = torch.nn.Parameter(w)
    recorded = arrays.load("te_nvfp4")
    products = ("fprop_y", "dgrad_dx", "wgrad_dw")
    for result, product in zip(run(linear, x, dy), products, strict=True):
        golden = torch.from_numpy(recorded[f"gemm_{dtype}/{product}"])
        assert torch.equal(result, golden.to(result.dtype)), product


def forward_reuse(
    fmt: BlockFormat, again: BlockFormat | None, rounding: Rounding = Rounding.NEAREST
) -> LinearRecipe:
    first = Operand(format=fmt, rounding=rounding)
    copy = Operand(format=again, source=Source.FORWARD)
    return LinearRecipe(fprop=Gemm(a=first, b=first), dgrad=Gemm(b=copy), wgrad=Gemm(b=copy))


@pytest.mark.parametrize("rounding", [Rounding.NEAREST, Rounding.STOCHASTIC_8])
@pytest.mark.parametrize("again", [None, f.MXFP8_E4M3], ids=["as it is", "in mxfp8"])
@pytest.mark.parametrize(
    "fmt",
    [f.NVFP4, f.NVFP4_16X16, f.NVFP4_ROWWISE, f.MXFP4, f.FP8_ROW_E4M3, f.FP8_TENSOR_E4M3],
    ids=lambda fmt: fmt.name,
)
def test_the_forward_copy_is_what_fprop_multiplied(
    fmt: BlockFormat, again: BlockFormat | None, rounding: Rounding
) -> None:
    """dX = dY deq(W) and dW = dY^T deq(X), re-quantized along the new axis where asked."""
    linear = layer(forward_reuse(fmt, again, rounding), (64, 96), bias=False)
    x, dy = torch.randn(32, 64), torch.randn(32, 96)
    _, dx, dw = run(linear, x, dy)
    how: dict[str, Any] = {"rounding": rounding, "noise": linear.noise}
    x_copy = fp4lab.fake_quantize(x, fmt, stream=FPROP_X.stream, **how)
    w_copy = fp4lab.fake_quantize(linear.weight.detach(), fmt, stream=FPROP_W.stream, **how)
    if again is not None:
        x_copy, w_copy = (fp4lab.fake_quantize(t, again, axis=-2) for t in (x_copy, w_copy))
    for result, dy_side, copy, length in ((dx, dy, w_copy, 96), (dw, dy.t(), x_copy, 32)):
        exact = dy_side.double() @ copy.double()
        size = dy_side.double().abs() @ copy.double().abs()
        assert ((result - exact).abs() <= (length + 5) * 2.0**-24 * size).all()


def test_square_blocks_quantize_the_weight_to_the_same_values_both_ways() -> None:
    """Edge case B53: W and W^T agree in 16x16 blocks and differ in rows of blocks."""
    w = torch.randn(32, 48)
    for fmt, same in ((f.NVFP4_16X16, True), (f.NVFP4, False), (f.MXFP4, False)):
        forward = fp4lab.fake_quantize(w, fmt, ragged="pad")
        backward = fp4lab.fake_quantize(w.t(), fmt, ragged="pad").t()
        assert torch.equal(forward, backward) == same
    x, dy = torch.randn(16, 48), torch.randn(16, 32)
    for fmt, same in ((f.NVFP4_16X16, True), (f.NVFP4, False)):
        dgrads = []
        for b in (Operand(format=fmt), Operand(source=Source.FORWARD)):
            gemm = Gemm(a=Operand(), b=Operand(format=fmt))
            recipe = LinearRecipe(fprop=gemm, dgrad=Gemm(a=Operand(), b=b))
            linear = layer(recipe, (48, 32), bias=False)
            with torch.no_grad():
                linear.weight.copy_(w)
            dgrads.append(run(linear, x, dy)[1])
        assert torch.equal(*dgrads) == same


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_outputs_and_gradients_have_the_dtypes_of_their_tensors(
    name: str, dtype: torch.dtype
) -> None:
    linear = layer(recipes.get(name).linear, (128, 128), dtype=dtype)
    y, dx, dw = run(linear, torch.randn(128, 128).to(dtype), torch.randn(128, 128).to(dtype))
    assert y.dtype == dx.dtype == dw.dtype == dtype
    assert linear.bias.grad is not None
    assert linear.bias.grad.dtype == dtype


@pytest.mark.parametrize("name", ["nvfp4", "mxfp8", "bf16"])
def test_autocast_casts_inputs_and_returns_gradients_in_the_parameters_dtype(name: str) -> None:
    """Edge case B51: also where one operand stays unquantized, and in its backward."""
    recipe = recipes.get(name).linear
    assert recipe is not None
    if name == "nvfp4":
        recipe = LinearRecipe(fprop=Gemm(a=recipe.fprop.a, b=Operand()), dgrad=recipe.dgrad)
    linear, plain = (layer(recipe, (128, 64)) for _ in range(2))
    plain.load_state_dict(linear.state_dict())
    plain.bfloat16()
    x, dy = torch.randn(32, 128), torch.randn(32, 64).bfloat16()
    inputs = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = linear(inputs)
    y.backward(dy)
    expected = run(plain, x.bfloat16(), dy)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, expected[0])
    for grad, reference in ((inputs.grad, expected[1]), (linear.weight.grad, expected[2])):
        assert grad is not None
        assert grad.dtype == torch.float32
        assert torch.equal(grad, reference.float())


@pytest.mark.parametrize("name", NAMES)
def test_empty_batches(name: str) -> None:
    """Edge case B68: shapes and dtypes as ever, and a zero gradient of the weight's shape."""
    linear = layer(recipes.get(name).linear, (128, 128))
    x = torch.zeros(0, 128, requires_grad=True)
    y = linear(x)
    assert y.shape == (0, 128)
    y.sum().backward()
    assert linear.weight.grad is not None
    assert not linear.weight.grad.any()
    assert x.grad is not None
    assert x.grad.shape == x.shape


def test_second_derivatives_are_refused_instead_of_wrong() -> None:
    linear = layer(recipes.get("nvfp4").linear, (64, 32))
    x = torch.randn(16, 64, requires_grad=True)
    (first,) = torch.autograd.grad(linear(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_products_ignore_autocast() -> None:
    """Edge case B51: float32 sums also where autocast would turn a matmul to bf16."""
    a, b = (fp4lab.quantize(torch.randn(16, 64), f.FP8_ROW_E4M3) for _ in range(2))
    expected = fp4lab.scaled_matmul(a, b)
    with torch.autocast("cpu", torch.bfloat16):
        product = fp4lab.scaled_matmul(a, b)
    assert product.dtype == torch.float32
    assert torch.equal(product, expected)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("shape", [(0, 32), (32, 1), (1, 1), (17, 30)])
def test_thin_layers(shape: tuple[int, int]) -> None:
    """Edge case B28: sides of 0 and 1, with padding."""
    linear = layer(recipes.get("nvfp4_base").linear, shape, ragged="pad")
    x = torch.randn(5, shape[0], requires_grad=True)
    y = linear(x)
    y.sum().backward()
    assert y.shape == (5, shape[1])
    assert linear.weight.grad is not None
    assert linear.weight.grad.shape == (shape[1], shape[0])
    if shape[0] == 0:
        assert torch.equal(y, linear.bias.expand(5, -1))


def test_leading_dimensions_and_strides() -> None:
    linear = layer(recipes.get("nvfp4").linear, (64, 32))
    x = torch.randn(2, 64, 16).transpose(1, 2)
    y = linear(x)
    assert y.shape == (2, 16, 32)
    assert torch.equal(y, linear(x.contiguous()))
    assert torch.equal(y.view(32, 32), linear(x.reshape(32, 64)))
    assert linear(x[0, 0].repeat(16, 1))[0].shape == (32,)


def test_inputs_that_cannot_be_multiplied_are_refused() -> None:
    linear = layer(recipes.get("nvfp4").linear, (64, 32))
    x = torch.randn(16, 64)
    for value, message in (
        ([1.0], "input of layer .* is a list"),
        (None, "input of layer .* is a NoneType"),
        (x.to_sparse(), "not a dense tensor"),
        (x.to(torch.float8_e4m3fn), "dtype torch.float8_e4m3fn"),
        (x.to("meta"), "input is on meta, layer '.*' on cpu"),
    ):
        with pytest.raises(fp4lab.InputError, match=message):
            linear(value)


def test_dimensions_that_do_not_fit_name_the_layer() -> None:
    """Edge case B28, for a layer: in the forward, and for the tokens in the backward."""
    linear = layer(LinearRecipe.uniform(f.NVFP4), (48, 32), layer_name="up")
    with pytest.raises(fp4lab.InputError, match=r"\(16, 64\) to layer 'up'.*in_features=48"):
        linear(torch.randn(16, 64))
    with pytest.raises(fp4lab.InputError, match="to layer 'up'"):
        linear(torch.tensor(1.0))
    thin = layer(LinearRecipe.uniform(f.NVFP4), (17, 32), layer_name="up")
    with pytest.raises(fp4lab.InputError, match=r"layer 'up': 17 input features .* 16 .*'pad'"):
        thin(torch.randn(16, 17))
    y = linear(torch.randn(17, 48))
    with pytest.raises(fp4lab.InputError, match=r"layer 'up': 17 tokens .* leave the layer"):
        y.sum().backward()


TRANSFORMED = Operand(hadamard=Hadamard(16))


@pytest.mark.parametrize(
    "recipe",
    [
        LinearRecipe.uniform(f.NVFP4),
        recipes.get("nvfp4").linear,
        recipes.get("mxfp4").linear,
        recipes.get("nvfp4+rht32").linear,
        LinearRecipe(wgrad=Gemm(a=TRANSFORMED, b=TRANSFORMED)),
    ],
    ids=["uniform", "nvfp4", "mxfp4", "rht32", "only transformed"],
)
def test_padded_dimensions_contribute_nothing(recipe: LinearRecipe) -> None:
    """Edge case B28: the layer with every side padded by hand gives the same numbers."""
    linear = layer(recipe, (K, N), bias=False, ragged="pad")
    wide = layer(recipe, (64, 32), bias=False)
    with torch.no_grad():
        wide.weight.copy_(F.pad(linear.weight, (0, 64 - K, 0, 32 - N)))
    x, dy = torch.randn(M, K), torch.randn(M, N)
    results = run(linear, x, dy)
    padded = run(wide, F.pad(x, (0, 64 - K, 0, 64 - M)), F.pad(dy, (0, 32 - N, 0, 64 - M)))
    for small, large in zip(results, padded, strict=True):
        assert torch.equal(small, large[: small.shape[0], : small.shape[1]])
        assert not large[small.shape[0] :].any()
        assert not large[:, small.shape[1] :].any()


def test_clipped_values_keep_their_gradient() -> None:
    """Edge case B49: the policy of layers is `identity`; dX does not depend on X."""
    recipe = LinearRecipe.uniform(f.get("mxfp4_floor"))
    linear = layer(recipe, (64, 32), bias=False)
    x = torch.linspace(-7.9, 7.9, 32 * 64).view(32, 64)
    assert fp4lab.error(x, f.get("mxfp4_floor")).saturation > 0.1
    dy = torch.randn(32, 32)
    _, clipped, _ = run(linear, x, dy)
    _, unclipped, _ = run(linear, torch.ones(32, 64), dy)
    assert torch.equal(clipped, unclipped)
    assert clipped[x.abs() > 7].any()


def test_autocast_leaves_float64_as_torch_does() -> None:
    """Edge of autocast: torch casts float16 to float32, and not float64."""
    plain = torch.nn.Linear(32, 32, dtype=torch.float64)
    ours = nn.Linear(32, 32, dtype=torch.float64)
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(16, 32, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, found = plain(x), ours(x)
    assert found.dtype == expected.dtype == torch.float64
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
