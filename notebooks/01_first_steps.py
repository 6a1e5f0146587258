# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     notebook_metadata_filter: kernelspec,jupytext,-jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # First steps with fp4lab
#
# What 4-bit numbers do to values, to a block with an outlier, to one linear layer and to a short
# training. It needs no GPU and no network, and runs in less than a minute. Numbers in the text are
# those of the cells, and the cells check them: where one no longer holds, the notebook stops.
#
# Symbols: M tokens, K inputs and N outputs of a layer; `x_MK` is a tensor of M rows and K columns.

# %%
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from rich.console import Console

import fp4lab
from fp4lab import formats, plots, recipes, report
from fp4lab.formats import (
    E2M1,
    E4M3,
    E5M2,
    MXFP4,
    NVFP4,
    NVFP4_16X16,
    NVFP4_SIGNS,
    BlockFormat,
    Hadamard,
    Overflow,
    Rounding,
    Ties,
)
from fp4lab.functional import compare
from fp4lab.instruments import gemm_errors


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# %% [markdown]
# ## 1. A format on the number line
#
# E2M1 has one sign bit, two exponent bits and one mantissa bit. Its 16 codes are 15 numbers, for +0
# and -0 are one.

# %%
plots.number_line(E2M1)
numbers = sorted(set(E2M1.values()))
print(numbers)
assert len(numbers) == 15
assert numbers[-1] == 6.0
assert E2M1.max_value / E2M1.min_subnormal == 12

# %% [markdown]
# *All numbers of E2M1. The gap between neighbours doubles from 0.5 to 1 at 2, and to 2 at 4. Below
# the smallest normal number, 1, are only 0.5 and 0.*
#
# FP8 comes in two types. E4M3 has a bit of mantissa more, E5M2 a bit of exponent more.

# %%
plots.number_line(E2M1, E4M3, E5M2, log=True)
for element in (E2M1, E4M3, E5M2):
    print(
        f"{element.name}: {element.bits} bits, {element.min_subnormal:g} to {element.max_value:g}"
    )
assert (E4M3.min_subnormal, E4M3.max_value) == (2**-9, 448.0)
assert (E5M2.min_subnormal, E5M2.max_value) == (2**-16, 57344.0)

# %% [markdown]
# *The positive numbers of three types, on an axis of powers of two. E2M1 spans a factor of 12, so
# it needs a scale to be of any use. E4M3 is denser, E5M2 reaches farther.*
#
# NVFP4 gives each block of 16 values a scale in E4M3, and the whole tensor one in float32. A block
# can then hold E2M1's numbers times its scale. MXFP4 has blocks of 32 and scales that are powers of
# two.

# %%
figure, axes = plt.subplots(
    2, 1, figsize=(7.6, 4.4), height_ratios=(3, 1), sharex=True, layout="constrained"
)
plots.scaled_number_lines(NVFP4, ax=axes[0]).set_title("nvfp4", fontsize=11)
plots.scaled_number_lines(MXFP4, ax=axes[1]).set_title("mxfp4", fontsize=11)
axes[0].set_xlabel("")
print(f"nvfp4: {NVFP4.bits_per_value():.2f} bits a value, mxfp4: {MXFP4.bits_per_value():.2f}")
assert len(axes[0].get_yticks()) == 9
assert len(axes[1].get_yticks()) == 2

# %% [markdown]
# *The positive numbers of one block, a row for each scale from 1 to 2. A block lies in one row and
# cannot mix rows. NVFP4 has nine rows where MXFP4 has two, so a block's largest value meets the end
# of a row more closely.*
#
# What that is worth on normally distributed numbers, in dB: SQNR is the power of the signal over
# the power of the error, 10 log10 of it. 20 dB is an error of a tenth of the signal.

# %%
x_MK = normal(512, 512, seed=0)
sqnr = {fmt.name: fp4lab.error(x_MK, fmt).sqnr_db for fmt in (NVFP4, NVFP4_16X16, MXFP4)}
for name, level in sqnr.items():
    print(f"{name}: {level:.1f} dB")
assert sqnr["nvfp4"] > sqnr["nvfp4_16x16"] > sqnr["mxfp4"] > 18
assert sqnr["nvfp4"] > 20

# %% [markdown]
# ## 2. Rounding
#
# Rounding to nearest is a staircase. Three choices are part of a format: what happens to ties, what
# happens beyond the largest number, and whether the rounding is random.

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
plots.staircase(E2M1, ax=axes[0]).set_title("e2m1, ties to even", fontsize=11)
plots.staircase(E2M1, ties=Ties.ZERO, ax=axes[1]).set_title("e2m1, ties to zero", fontsize=11)
halves = torch.tensor([0.25, 0.75, 2.5, 5.0])
for ties in Ties:
    print(f"{ties.name:>4}: {halves.tolist()} -> {fp4lab.cast(halves, E2M1, ties=ties).tolist()}")
assert fp4lab.cast(halves, E2M1).tolist() == [0.0, 1.0, 2.0, 4.0]
assert fp4lab.cast(halves, E2M1, ties=Ties.AWAY).tolist() == [0.5, 1.0, 3.0, 6.0]
assert fp4lab.cast(torch.tensor([1e9]), E2M1).item() == 6.0

# %% [markdown]
# *Rounding to E2M1. Flat ends: what is beyond 6 becomes 6 (it saturates). Filled dots: where a
# number halfway between two others goes; to the even one on the left, toward zero on the right.*
#
# Types with infinity or NaN can also give those beyond the end, as IEEE 754 does; block formats
# saturate.

# %%
far = torch.tensor([448.0, 1e6])
for element in (E4M3, E5M2):
    found = fp4lab.cast(far, element, overflow=Overflow.SPECIAL).tolist()
    print(f"{element.name}: {far.tolist()} -> {found}, saturating: {fp4lab.cast(far, element)}")

# %% [markdown]
# Stochastic rounding goes up with a probability equal to the distance from the number below, in
# steps. Then a value is kept on average, at the price of a larger error each time.

# %%
plots.stochastic_staircase(E2M1)

values = torch.tensor([0.1, 1.2, 2.3, 4.5, 5.5])
plain = BlockFormat(name="e2m1", element=E2M1)
draws = fp4lab.fake_quantize(
    values.expand(100_000, -1),
    plain,
    rounding=Rounding.STOCHASTIC_8,
    noise=fp4lab.noise_state(seed=0),
).double()
step = torch.tensor([0.5, 0.5, 1.0, 2.0, 2.0])
up = (256 * (values / step % 1)).floor().double() / 256  # 8 random bits know only 256ths
mean = (values / step).floor() * step + up * step
deviation = (up * (1 - up)).sqrt() * step
away = (draws.mean(0) - mean) / (deviation / len(draws) ** 0.5)
for row in zip(values, mean, draws.mean(0), deviation, draws.std(0), away, strict=True):
    print(
        "{:.1f}: mean {:.4f}, measured {:.4f}; deviation {:.4f}, measured {:.4f};"
        " {:+.1f} standard errors".format(*(number.item() for number in row))
    )
assert away.abs().max() < 4
assert ((draws.std(0) - deviation).abs() < 0.01 * deviation).all()

# %% [markdown]
# *Stochastic rounding to E2M1, 256 draws a dot. The mean follows the diagonal up to 6, where it
# saturates; the spread is nothing on a number of the format and half a step in between. Dots and
# bars lie on the band that the theory gives.*
#
# With 8 random bits a probability is rounded down to a multiple of 1/256, as Blackwell's
# instruction does. So the mean falls short by up to 1/256 of a step: see 0.1 and 1.2 in the table.
# `Rounding.STOCHASTIC_32` takes 32 bits.
#
# How often each error occurs, over values spread evenly:

# %%
spread = torch.empty(512, 512).uniform_(-6, 6, generator=torch.Generator().manual_seed(0))
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
plots.error_histogram(spread, plain, ax=axes[0])
noise = fp4lab.noise_state(seed=0)
plots.error_histogram(spread, plain, rounding=Rounding.STOCHASTIC_8, noise=noise, ax=axes[1])
nearest = fp4lab.error(spread, plain).sqnr_db
stochastic = fp4lab.error(spread, plain, rounding=Rounding.STOCHASTIC_8, noise=noise).sqnr_db
print(f"nearest {nearest:.2f} dB, stochastic {stochastic:.2f} dB: {nearest - stochastic:.2f} less")
assert abs(nearest - stochastic - 3.01) < 0.1

# %% [markdown]
# *The error in steps. To nearest it is uniform within half a step, stochastically a triangle within
# one step. The triangle's variance is twice as large, 1/6 against 1/12: that is 3 dB.*
#
# ## 3. One outlier and its block
#
# A scale is made for the largest value of its block. One outlier takes the resolution of all
# others.

# %%
x_MK = normal(64, 64, seed=0)
x_MK[20, 40] = 16.0
plots.quantized_row(x_MK, NVFP4, row=20)
q_MK = fp4lab.fake_quantize(x_MK, NVFP4)
lost = (q_MK[20].view(4, 16) == 0).sum(1).tolist()
print(f"zeros in the four blocks of row 20: {lost}")
assert lost == [0, 0, 7, 0]

# %% [markdown]
# *One row before and after NVFP4; level lines are the numbers that each block can hold. In the
# third block, with the outlier, levels are so far apart that 7 of 16 values become zero.*
#
# How many values share that fate is the shape of the block: 1x16 and 16x16 in NVFP4 (the second is
# for weights: a matrix and its transpose then have the same numbers), 1x32 in MXFP4.

# %%
figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
for ax, fmt in zip(axes, (NVFP4, NVFP4_16X16, MXFP4), strict=True):
    plots.block_scales(x_MK, fmt, limits=(0.125, 4.0), ax=ax)
calm_MK = x_MK.clone()
calm_MK[20, 40] = 1.0
lost_to_it = {}
for fmt in (NVFP4, NVFP4_16X16, MXFP4):
    with_it, without = (fp4lab.fake_quantize(x, fmt) for x in (x_MK, calm_MK))
    lost_to_it[fmt.name] = int(((with_it == 0) & (without != 0)).sum())
print("values that are zero because of the outlier:", lost_to_it)
assert lost_to_it["nvfp4_16x16"] > 5 * lost_to_it["mxfp4"] > 5 * lost_to_it["nvfp4"] > 0

# %% [markdown]
# *Decode scales: what a step of 1 in E2M1 is worth in each block, on one scale of colours. The
# outlier at row 20, column 40 raises the scale of 16, 256 or 32 values.*
#
# A Hadamard transform mixes the values of a block: each new value is a sum of all 16, with signs,
# over 4. It is orthogonal, so it keeps sums of squares and can be undone; where both operands of a
# product are transformed alike, the product stays as it is. Here is its matrix, and the row after
# it.

# %%
transform = Hadamard(16, NVFP4_SIGNS)
h_KK = fp4lab.quantize(torch.eye(16), formats.BF16, hadamard=transform).dequantize()
assert h_KK.abs().unique().tolist() == [0.25]
assert torch.equal(h_KK @ h_KK.T, torch.eye(16))
plots.quantized_row(x_MK, NVFP4, row=20, hadamard=transform)

block = x_MK[20, 32:48]
before = block.abs().max().item()
sizes = (block @ h_KK).abs()
q_transformed = fp4lab.quantize(x_MK, NVFP4, hadamard=transform).dequantize()[20, 32:48]
zeros = int((q_transformed == 0).sum())
print(f"largest value of the outlier's block: {before:.1f} before, {sizes.max():.1f} after")
print(f"smallest after: {sizes.min():.1f}, median {sizes.median():.1f}; zeros: {zeros}")
assert sizes.max() < before / 2
assert zeros == 0

# %% [markdown]
# *The same row after the transform. The outlier is spread over the 16 values of its block, which
# are now around +4 or -4, and none becomes zero.*
#
# Is the error smaller? Measured for outliers of many sizes, in blocks of otherwise normal numbers:

# %%
ax = plots.outlier_curve(NVFP4)
plots.outlier_curve(NVFP4, hadamard=transform, ax=ax)
plots.outlier_curve(MXFP4, ax=ax)
plots.outlier_curve(MXFP4, hadamard=Hadamard(32, 0), ax=ax)
curves = {line.get_label(): torch.tensor(line.get_ydata()) for line in ax.get_lines()}
middle = slice(16, 41)  # outliers of 4 to 32
for name, levels in curves.items():
    print(f"{name}: {levels[0]:.1f} dB without an outlier, {levels[middle].mean():.1f} dB with one")
gain_nvfp4 = (curves["nvfp4, Hadamard 16"] - curves["nvfp4"])[middle].mean().item()
gain_mxfp4 = (curves["mxfp4, Hadamard 32"] - curves["mxfp4"])[middle].mean().item()
print(f"the transform changes nvfp4 by {gain_nvfp4:+.1f} dB, mxfp4 by {gain_mxfp4:+.1f} dB")
assert -2.5 < gain_nvfp4 < -0.5
assert 1.0 < gain_mxfp4 < 5.0

# %% [markdown]
# *SQNR of blocks with one outlier. MXFP4 alone goes up and down with where the outlier lies between
# two powers of two, and the transform helps it. NVFP4's finer scale fits the outlier more closely,
# and here the transform makes the error of the block larger.*
#
# So the transform does not make every error smaller. It changes who bears it: without, the small
# values of the block, which become zero; with it, all values alike. The published recipe uses it in
# one of three products only, as the next section shows, and whether it pays is a question of
# training, which `fp4lab compare --recipes bf16,nvfp4,nvfp4-rht` asks.
#
# ## 4. One linear layer, three products
#
# A linear layer multiplies three times: fprop gives the output, dgrad the gradient of the input and
# wgrad that of the weight. A recipe says what becomes of each operand.

# %%
recipe = recipes.get("nvfp4").linear
print(recipe)
assert str(recipe.fprop.a) == "nvfp4"
assert str(recipe.wgrad.a) == "nvfp4 SR8 RHT16"

# %% [markdown]
# X is rounded to nearest in 1x16 blocks. W has 16x16 blocks, so that dgrad, which needs its
# transpose, multiplies the same numbers as fprop ("as in fprop"). The gradient dY is rounded
# stochastically with 8 bits (SR8). wgrad's operands are transformed first (RHT16), and its blocks
# run along the tokens.
#
# The error of every operand and of every product, against float64:

# %%
M, K, N = 256, 128, 64
x_MK, dy_MN = normal(M, K, seed=1), normal(M, N, seed=2)
torch.manual_seed(0)
layer = fp4lab.nn.Linear(K, N, bias=False, recipe=recipe)


def loss() -> torch.Tensor:
    """A loss whose gradient at the output is dY."""
    return (layer(x_MK.requires_grad_()) * dy_MN).sum()


errors = gemm_errors(layer, loss)
operand_db = {(row.gemm, row.operand): row.sqnr_db for row in errors.operands}
product_db = {row.product: row.sqnr_db for row in errors.products}
for gemm, product in (("fprop", "Y"), ("dgrad", "dX"), ("wgrad", "dW")):
    (a, b) = (f"{name} {db:.1f}" for (where, name), db in operand_db.items() if where == gemm)
    powers = sum(10 ** (-db / 10) for (where, _), db in operand_db.items() if where == gemm)
    added = -10 * math.log10(powers)
    print(f"{gemm}: {a} dB, {b} dB; added {added:.1f} dB; {product} {product_db[product]:.1f} dB")
    assert abs(added - product_db[product]) < 0.5
assert operand_db["fprop", "X"] - operand_db["dgrad", "dY"] > 2.5
assert operand_db["fprop", "W"] == operand_db["dgrad", "W^T"]

# %% [markdown]
# The powers of the operands' errors add up, and that is nearly the error of the product. The
# stochastically rounded gradients have some 3 dB less than what is rounded to nearest, as in
# section 2.
#
# What do we get for those 3 dB? A gradient that is right on average, or nearly. Measured: the
# weight's gradient of the same tensors, 512 times with new noise (`set_step` moves it on), against
# the gradient without any rounding of dY. Both have the same quantized X, so that only dY's
# rounding is judged.

# %%
DRAWS = 512


def weight_gradients(linear: recipes.LinearRecipe, draws: int) -> torch.Tensor:
    layer = fp4lab.nn.Linear(K, N, bias=False, recipe=linear)
    found = []
    for step in range(draws):
        layer.set_step(step)
        layer.weight.grad = None
        layer(x_MK.detach()).backward(dy_MN)
        found.append(layer.weight.grad)
    return torch.stack(found).double()


def with_dy(fmt: BlockFormat | None, rounding: Rounding) -> recipes.LinearRecipe:
    """The recipe with another treatment of wgrad's dY."""
    dy = replace(recipe.wgrad.a, format=fmt, rounding=rounding)
    return replace(recipe, wgrad=replace(recipe.wgrad, a=dy))


exact_NK = weight_gradients(with_dy(None, Rounding.NEAREST), 1)[0]
# scales for values up to 5.65 instead of 6, so that a scale rounded down clips nothing
roomy = NVFP4.replace(name="nvfp4_roomy", amax_target=6 * 16 / 17)
kinds = {
    "to nearest": with_dy(NVFP4, Rounding.NEAREST),
    "nvfp4 SR8": recipe,
    "nvfp4 SR32": with_dy(NVFP4, Rounding.STOCHASTIC_32),
    "roomy SR8": with_dy(roomy, Rounding.STOCHASTIC_8),
    "roomy SR32": with_dy(roomy, Rounding.STOCHASTIC_32),
}
found = {name: weight_gradients(linear, DRAWS) for name, linear in kinds.items()}
# the part of each gradient that lies along the exact one: 1 on average if there is no bias
length = {}
for name, dw in found.items():
    along = (dw * exact_NK).sum((1, 2)) / exact_NK.square().sum()
    length[name] = along.mean().item(), along.std().item() / DRAWS**0.5
    print(f"{name:<10} {length[name][0]:.5f} +- {length[name][1]:.5f}")
assert abs(length["nvfp4 SR8"][0] - 0.996) < 0.0005
for name in ("nvfp4 SR8", "nvfp4 SR32", "roomy SR8"):
    assert length[name][0] < 1 - 4 * length[name][1], name
assert length["nvfp4 SR32"][0] < length["roomy SR8"][0]
assert abs(length["roomy SR32"][0] - 1) < 2 * length["roomy SR32"][1]

# %% [markdown]
# *The mean of 512 draws and its standard error.* NVFP4 as it is published is not quite unbiased:
# the gradient is 0.4 % too short, many standard errors. There are two reasons. A block's scale is
# itself rounded, to E4M3; where it is rounded down, the largest values lie beyond 6 and saturate.
# And 8 random bits round toward zero. A scale that leaves room (`amax_target`) removes the first,
# the larger part; 32 random bits remove the second; with both, 1 is within two standard errors.

# %%
ax = plots.averaged_error(found["nvfp4 SR8"], exact_NK, label="nvfp4 SR8")
plots.averaged_error(found["roomy SR32"], exact_NK, label="roomy SR32", ax=ax)
one = {name: compare(dw[0], exact_NK).relative_mse ** 0.5 for name, dw in found.items()}
mean = {name: compare(dw.mean(0), exact_NK).relative_mse ** 0.5 for name, dw in found.items()}
ax.axhline(one["to nearest"], color="#1f9564", label="to nearest")
ax.legend(frameon=False)
for name in found:
    print(f"{name:<10} error of one gradient {one[name]:.3f}, of {DRAWS} averaged {mean[name]:.4f}")
assert found["to nearest"].std(0).max() == 0
assert one["to nearest"] < one["nvfp4 SR8"] < one["roomy SR32"]
assert mean["nvfp4 SR8"] < one["to nearest"] / 5
assert mean["roomy SR32"] < mean["nvfp4 SR8"] / 1.4

# %% [markdown]
# *Error of the mean of n gradients, and the dashed line that it follows without a bias. One
# stochastic gradient is worse than the one to nearest, which is the same each time, so that
# averaging does not help it. NVFP4's stochastic mean falls, then leaves its line; with room and 32
# bits it stays on it, for a larger error of one gradient.*
#
# ## 5. Weights that stay packed
#
# Two codes share a byte. A quantized tensor keeps codes, scales and amax, and a few rows of
# activations can be multiplied with it as it is.

# %%
w_NK = normal(1024, 512, seed=3)
packed = fp4lab.quantize(w_NK, NVFP4)
x_MK = normal(2, 512, seed=4).bfloat16()
y_MN = fp4lab.packed_linear(x_MK, packed)
reference = x_MK.double() @ packed.dequantize().double().T
print(packed)
print(f"{w_NK.nbytes:,} bytes in float32, {packed.nbytes:,} packed")
print(
    f"product against float64: {compare(y_MN, reference).sqnr_db:.0f} dB, rounded to {y_MN.dtype}"
)
assert packed.nbytes == 1024 * 512 // 2 + 1024 * 512 // 16 + 4
assert compare(y_MN, reference).sqnr_db > 50

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "layer.safetensors"
    fp4lab.save({"weight": packed}, path)
    again = fp4lab.load(path)["weight"]
    print(f"{path.stat().st_size:,} bytes in the file")
assert again.equal(packed)

# %% [markdown]
# What comes back from the file is equal bit for bit. A layer in training is not packed: it keeps
# its weights in float32 or bfloat16 and quantizes them anew in every step.
#
# ## 6. A short comparison
#
# The question behind all this: what does a recipe cost in loss? `fp4lab.compare` trains one model
# under several recipes from the same initial weights on the same batches, here a small network that
# learns to name the largest of 32 sums. Seeds differ in the initial weights and the rounding noise.


# %%
def build_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128),
        torch.nn.GELU(),
        torch.nn.Linear(128, 128),
        torch.nn.GELU(),
        torch.nn.Linear(128, 32),
    )


teacher = normal(64, 32, seed=7)


def batch(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = normal(128, 64, seed=index)
    return inputs, (torch.tanh(inputs) @ teacher).argmax(1)


runs = tempfile.TemporaryDirectory()
result = fp4lab.compare(
    build_model,
    batch,
    ["bf16", "nvfp4", "mxfp4"],
    seeds=3,
    steps=150,
    out=runs.name,
    console=Console(quiet=True),  # leave it out to see the progress
)
for name, row in result.summary.recipes.items():
    interval = (
        f"95 % interval {row.interval[0]:+.3f} to {row.interval[1]:+.3f}" if row.interval else ""
    )
    print(f"{name}: loss {row.val_loss:.3f} nats, gap {row.gap:+.3f} {interval}")
for pair in result.summary.neighbours:
    low, high = pair.interval
    print(f"{pair.worse} above {pair.better}: {low:+.3f} to {high:+.3f}, {pair.verdict}")

# %%
curves = report.read_findings(result.folder).curves
figure = report.relative_curves(curves, "bf16")
figure

# %%
gaps = {name: row.gap for name, row in result.summary.recipes.items()}
lows = [result.summary.recipes[name].interval[0] for name in ("nvfp4", "mxfp4")]
assert 0.02 < gaps["nvfp4"] < 0.2
assert 0.02 < gaps["mxfp4"] < 0.3
assert min(lows) > 0
low, high = result.summary.neighbours[1].interval
assert low < 0 < high
assert result.report.is_file()
runs.cleanup()

# %% [markdown]
# *Loss above that of BF16, in percent; dots are evaluations on held-out data. Both 4-bit recipes
# end above BF16, and the intervals of their gaps do not reach 0.*
#
# What so short a run can show: that both recipes train, and that here BF16 is ahead of both. What
# it cannot show: which of the two is better, for the interval of their difference includes 0
# ("unresolved"), and how large the gap will be in your model, for this network is tiny and 150
# steps are the beginning of a training. `make demo` trains a GPT on real text in some minutes; for
# your own model and data, the call above is the one.
#
# `result.report` is the path of an HTML page with curves, gaps, the errors of every layer and what
# is needed to repeat the run. Here it lay in a temporary folder; give `out="runs/mine"` to keep it,
# and `fp4lab report runs/mine` draws it anew.
#
# ## 7. Where to go next
#
# - `fp4lab compare --help`: the same from the command line, on your own text.
# - `fp4lab.convert(model, recipes.get("nvfp4"), seed=0)` turns the layers of a model of yours, and
#   says what each got.
# - `recipes.names()` lists published recipes; a name can say more, such as `nvfp4_last2-rht` (the
#   last two blocks in BF16, no Hadamard transform). A recipe can be a TOML file.
# - A format of your own is a `BlockFormat` of a few fields; it works wherever a format is taken,
#   also in every figure above.
# - The README has all of these with examples, DESIGN.md says how the package is built.
