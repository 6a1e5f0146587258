"""The GPT: its mathematics against a plain float64 version, its initial weights, its contracts."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fp4lab.errors import InputError
from fp4lab.models import GPT, GPTConfig, get_preset
from fp4lab.models.gpt_config import Activation
from fp4lab.models.rope import rope_tables

SMALL = GPTConfig(
    vocab_size=37, dim=24, num_blocks=2, num_heads=4, num_kv_heads=2, head_dim=8,
    hidden_dim=40, context_length=16, init_std=0.2,
)  # fmt: skip
VARIANTS: list[dict[str, Any]] = [
    {},
    {"activation": "relu2"},
    {"num_kv_heads": 4},
    {"num_kv_heads": 1, "tied_head": True, "activation": "relu2", "rope_base": 100.0},
]


def build(config: GPTConfig = SMALL, *, seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(config)


def some_tokens(config: GPTConfig, batch: int = 3, time: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(config.vocab_size, (batch, time), generator=generator)


def plain_logits(model: GPT, tokens_T: Tensor) -> Tensor:
    """The forward pass of one sequence: float64, one head and one position at a time."""
    config, weights = model.config, {k: v.double() for k, v in model.state_dict().items()}
    half = config.head_dim // 2
    tables = rope_tables(
        len(tokens_T), config.head_dim, base=config.rope_base, device=tokens_T.device
    )
    turn_TP = torch.complex(tables[0][:, 0, :half].double(), tables[1][:, 0, half:].double())

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * weights[name]

    def rotate(x: Tensor, t: int) -> Tensor:
        z = torch.complex(x[:half], x[half:]) * turn_TP[t]
        return torch.cat((z.real, z.imag))

    x_TD = weights["embedding.weight"][tokens_T]
    for i in range(config.num_blocks):
        w = {k.removeprefix(f"blocks.{i}."): v for k, v in weights.items()}
        n_TD = norm(x_TD, f"blocks.{i}.attention_norm.weight")
        heads = []
        for head in range(config.num_heads):
            pair = head // (config.num_heads // config.num_kv_heads)
            first_key = config.num_heads + pair
            q_KD, k_KD, v_KD = (
                w["attention.qkv.weight"][place * config.head_dim :][: config.head_dim]
                for place in (head, first_key, first_key + config.num_kv_heads)
            )
            k_TK = torch.stack([rotate(k_KD @ n, t) for t, n in enumerate(n_TD)])
            rows = []
            for t, n_D in enumerate(n_TD):
                score_S = k_TK[: t + 1] @ rotate(q_KD @ n_D, t) / config.head_dim**0.5
                rows.append(score_S.softmax(0) @ (n_TD[: t + 1] @ v_KD.T))
            heads.append(torch.stack(rows))
        x_TD = x_TD + torch.cat(heads, -1) @ w["attention.out.weight"].T
        n_TD = norm(x_TD, f"blocks.{i}.mlp_norm.weight")
        up = n_TD @ w["mlp.up.weight"].T
        if config.activation == "relu2":
            hidden = up.clamp(min=0) ** 2
        else:
            gate = n_TD @ w["mlp.gate.weight"].T
            hidden = gate * gate.sigmoid() * up
        x_TD = x_TD + hidden @ w["mlp.down.weight"].T
    return norm(x_TD, "final_norm.weight") @ weights["head.weight"].T


@pytest.mark.parametrize("change", VARIANTS)
def test_equals_the_plain_float64_forward(change: dict[str, Any]) -> None:
    config = dataclasses.replace(SMALL, **change)
    model = build(config).double()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):  # ones would hide a forgotten multiplication
            torch.nn.init.normal_(parameter)
    tokens_BT = some_tokens(config)
    logits_BTV = model(tokens_BT)
    expected_BTV = torch.stack([plain_logits(model, tokens_T) for tokens_T in tokens_BT])
    # Both sums are float64; what remains is the last rounding of the logits to float32.
    bound = 2.0**-23 * expected_BTV.abs().max()
    assert logits_BTV.dtype == torch.float32
    assert (logits_BTV - expected_BTV).abs().max() <= bound


@pytest.mark.parametrize("change", VARIANTS)
@pytest.mark.parametrize("place", [1, 7, 15])
def test_a_later_token_changes_no_earlier_logit(change: dict[str, Any], place: int) -> None:
    model = build(dataclasses.replace(SMALL, **change))
    tokens_BT = some_tokens(SMALL, time=16)
    other_BT = tokens_BT.clone()
    other_BT[:, place] = (other_BT[:, place] + 1) % SMALL.vocab_size
    one_BTV, other_BTV = model(tokens_BT), model(other_BT)
    assert torch.equal(one_BTV[:, :place], other_BTV[:, :place])
    assert (one_BTV[:, place:] != other_BTV[:, place:]).any(-1).all()


def test_grouped_queries_equal_repeated_key_value_heads() -> None:
    grouped = build().double()
    full = build(dataclasses.replace(SMALL, num_kv_heads=SMALL.num_heads)).double()
    state = grouped.state_dict()
    for name, weight in state.items():
        if name.endswith("qkv.weight"):
            heads_HKD = weight.view(-1, SMALL.head_dim, SMALL.dim)
            q_HKD, kv_HKD = heads_HKD.split((SMALL.num_heads, 2 * SMALL.num_kv_heads))
            state[name] = torch.cat((q_HKD, kv_HKD.repeat_interleave(2, 0))).flatten(0, 1)
    full.load_state_dict(state)
    tokens_BT = some_tokens(SMALL)
    one_BTV, other_BTV = grouped(tokens_BT), full(tokens_BT)
    assert (one_BTV - other_BTV).abs().max() <= 2.0**-23 * one_BTV.abs().max()


def test_parameter_names() -> None:
    names = {"embedding.weight", "final_norm.weight", "head.weight"}
    for i in range(2):
        names |= {f"blocks.{i}.{norm}.weight" for norm in ("attention_norm", "mlp_norm")}
        names |= {f"blocks.{i}.attention.{name}.weight" for name in ("qkv", "out")}
        names |= {f"blocks.{i}.mlp.{name}.weight" for name in ("gate", "up", "down")}
    gates = {f"blocks.{i}.mlp.gate.weight" for i in range(2)}
    assert set(build().state_dict()) == names
    assert set(build(get_preset("gpt-tiny")).state_dict()) == names - gates


def test_a_tied_head_shares_storage_through_copies_and_casts() -> None:
    config = dataclasses.replace(SMALL, tied_head=True)
    with torch.device("meta"):
        on_meta = GPT(config)
    empty = on_meta.to_empty(device="cpu")
    for model in (build(config), copy.deepcopy(build(config)), build(config).bfloat16(), empty):
        assert model.head.weight is model.embedding.weight
    untied = build()
    assert untied.head.weight is not untied.embedding.weight
    size = SMALL.vocab_size * SMALL.dim
    tied_size = build(config).num_parameters(embedding=True)
    assert untied.num_parameters(embedding=True) == tied_size + size


@pytest.mark.parametrize("tied", [False, True])
def test_initial_weights_depend_on_the_seed_alone(tied: bool) -> None:
    config = dataclasses.replace(SMALL, tied_head=tied)
    with torch.device("meta"):
        deferred = GPT(config)
    deferred.to_empty(device="cpu")
    torch.manual_seed(5)
    deferred.reset_parameters()
    built, other = build(config, seed=5).state_dict(), build(config, seed=6).state_dict()
    for name, weight in deferred.state_dict().items():
        assert torch.equal(weight, built[name])
        assert torch.equal(weight, other[name]) == name.endswith("norm.weight")
    assert not list(deferred.buffers())


def test_initial_scale_falls_with_depth_where_the_residual_stream_is_written() -> None:
    config = dataclasses.replace(get_preset("gpt-tiny"), num_blocks=8)
    model = build(config)
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            assert torch.equal(weight, torch.ones_like(weight))
            continue
        residual = name.endswith(("out.weight", "down.weight"))
        std = config.init_std * (0.25 if residual else 1.0)  # 1 / sqrt(2 * 8)
        # A sample standard deviation of n normals scatters by std / sqrt(2 n); six of those.
        assert abs(weight.std().item() - std) <= 6 * std / (2 * weight.numel()) ** 0.5
        assert abs(weight.mean().item()) <= 6 * std / weight.numel() ** 0.5


def test_flops_are_megatrons_count_for_the_shape_of_gpt3() -> None:
    config = dataclasses.replace(get_preset("gpt3-175b"), num_blocks=3)
    with torch.device("meta"):
        model = GPT(config)
    layers, width, length = config.num_blocks, config.dim, 2048
    # 72 B s l h^2 (1 + s / 6h + V / 12lh), per token.
    expected = 72 * layers * width**2 + 12 * layers * width * length + 6 * width * config.vocab_size
    assert model.flops_per_token(length) == expected


def test_flops_of_the_layers_are_what_torch_counts() -> None:
    model = build(get_preset("gpt-tiny"))
    tokens_BT = some_tokens(model.config, batch=2, time=64)
    with FlopCounterMode(display=False) as counter:
        model(tokens_BT).sum().backward()
    matrix_products = counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    attention = 12 * 2 * 64 * 64  # blocks, heads * head_dim, length
    assert matrix_products == (model.flops_per_token(64) - attention) * tokens_BT.numel()


def test_it_learns_a_batch_by_heart() -> None:
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens_BT = some_tokens(SMALL, batch=4, time=16)
    losses = []
    for _ in range(60):
        logits_BTV = model(tokens_BT[:, :-1])
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.any() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 3
    assert losses[-1] < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu2", "swiglu"])
def test_compiles_as_one_graph(activation: Activation) -> None:
    torch.compiler.reset()
    model = build(dataclasses.replace(SMALL, num_blocks=1, activation=activation))
    tokens_BT = some_tokens(SMALL)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(tokens_BT), model(tokens_BT))


def test_a_copy_computes_the_same_and_is_independent() -> None:
    model = build()
    twin = copy.deepcopy(model)
    tokens_BT = some_tokens(SMALL)
    before_BTV = model(tokens_BT)
    assert torch.equal(twin(tokens_BT), before_BTV)
    torch.nn.init.zeros_(twin.head.weight)
    assert torch.equal(model(tokens_BT), before_BTV)


def test_autocast_and_bfloat16_weights_give_float32_logits() -> None:
    model, tokens_BT = build(), some_tokens(SMALL)
    exact_BTV = model(tokens_BT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits_BTV = model(tokens_BT)
    logits_BTV.square().mean().backward()
    assert logits_BTV.dtype == torch.float32
    assert torch.equal(logits_BTV, logits_BTV.bfloat16().float())  # the head did run in bfloat16
    assert not torch.equal(logits_BTV, exact_BTV)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model.bfloat16()(tokens_BT).dtype == torch.float32


def test_wrong_tokens_are_named() -> None:
    model = build()
    with pytest.raises(InputError, match=r"tokens\.shape\[1\]=17 .*context_length=16"):
        model(torch.zeros(1, 17, dtype=torch.int64))
    with pytest.raises(InputError, match=r"tokens has shape \(4,\).*\[batch, time\]"):
        model(torch.zeros(4, dtype=torch.int64))
    with pytest.raises(InputError, match=r"sequence_length=17 .*context_length=16"):
        model.flops_per_token(17)
