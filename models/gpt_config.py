"""Shapes of decoder-only transformers: one frozen dataclass and the named presets.

A configuration is data: it is checked when it is made and knows nothing of torch. `dim` is the
width of the residual stream, `hidden_dim` the inner width of the MLP; the attention width is
`num_heads * head_dim` and need not equal `dim`.

Presets follow published shapes where there is one. What `models.gpt` does not have (learned
positions, biases, GELU, dropout) a preset leaves out too, so `gpt3-175b` is GPT-3 in shape only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from fp4lab.errors import InputError, unknown

Activation = Literal["swiglu", "relu2"]


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The shape and the initial scale of a GPT.

    `activation` is "swiglu" (`silu(gate(x)) * up(x)`) or "relu2" (`relu(up(x))**2`);
    `num_kv_heads < num_heads` is grouped-query attention. `init_std` is the standard deviation of
    every weight matrix but the two that write to the residual stream, see `GPT.reset_parameters`.
    Raises `InputError` for a shape that cannot be built.

    >>> from dataclasses import replace
    >>> wide = replace(get_preset("gpt-tiny"), hidden_dim=256)
    >>> wide.dim, wide.hidden_dim
    (64, 256)
    """

    vocab_size: int
    dim: int
    num_blocks: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_dim: int
    context_length: int
    activation: Activation = "swiglu"
    tied_head: bool = False
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    init_std: float = 0.02

    def __post_init__(self) -> None:
        if self.activation not in get_args(Activation):
            raise unknown("activation", self.activation, get_args(Activation))
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (type(value) is not int or value < 1):
                raise InputError(f"{field.name}={value!r} is no whole number; give 1 or more")
            if field.type == "float" and not 0 < value < math.inf:
                raise InputError(
                    f"{field.name}={value!r} must be positive and finite; give such a number"
                )
        if self.num_heads % self.num_kv_heads:
            raise InputError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads="
                f"{self.num_kv_heads}; change either, for every key-value head serves as many heads"
            )
        if self.head_dim % 2:
            raise InputError(
                f"head_dim={self.head_dim} is odd; RoPE turns pairs, so use an even number"
            )


# Byte-level presets use init_std = dim**-0.5, which is what lets so small a model learn quickly;
# the larger ones the usual 0.02.
PRESETS: dict[str, GPTConfig] = {
    # The demo: 82 k parameters outside the embeddings; 2,050 steps of 16 x 64 bytes are 25 tokens
    # per parameter, which is where differences between recipes become visible.
    "gpt-tiny": GPTConfig(
        vocab_size=256, dim=64, num_blocks=2, num_heads=4, num_kv_heads=4, head_dim=16,
        hidden_dim=192, context_length=64, activation="relu2", init_std=0.125,
    ),
    # 2.6 M: minutes on a GPU at 25 to 100 tokens per parameter.
    "gpt-mini": GPTConfig(
        vocab_size=256, dim=256, num_blocks=4, num_heads=4, num_kv_heads=2, head_dim=64,
        hidden_dim=832, context_length=256, activation="relu2", init_std=0.0625,
    ),
    # 25 M, still on bytes.
    "gpt-small": GPTConfig(
        vocab_size=256, dim=512, num_blocks=8, num_heads=8, num_kv_heads=8, head_dim=64,
        hidden_dim=1408, context_length=512,
    ),
    # The two sizes of the Quartet II experiments (Llama-2 style, 512 tokens, Llama-2 vocabulary).
    "llama-30m": GPTConfig(
        vocab_size=32_000, dim=640, num_blocks=6, num_heads=5, num_kv_heads=5, head_dim=128,
        hidden_dim=1792, context_length=512,
    ),
    "llama-100m": GPTConfig(
        vocab_size=32_000, dim=1024, num_blocks=8, num_heads=8, num_kv_heads=8, head_dim=128,
        hidden_dim=2816, context_length=512,
    ),
    # The ablation model of "Pretraining LLMs with NVFP4" (arXiv 2509.25149, appendix A.3). The
    # paper's page of facts gives no vocabulary; 131,072 is that of its sibling models.
    "gpt-1.2b-nemotron": GPTConfig(
        vocab_size=131_072, dim=2048, num_blocks=20, num_heads=16, num_kv_heads=8, head_dim=128,
        hidden_dim=6144, context_length=8192, activation="relu2",
    ),
    # Llama 3 8B (arXiv 2407.21783, table 3).
    "llama3-8b": GPTConfig(
        vocab_size=128_256, dim=4096, num_blocks=32, num_heads=32, num_kv_heads=8, head_dim=128,
        hidden_dim=14_336, context_length=8192, rope_base=500_000.0,
    ),
    # GPT-3 (arXiv 2005.14165, table 2.1) with RoPE and squared ReLU.
    "gpt3-175b": GPTConfig(
        vocab_size=50_257, dim=12_288, num_blocks=96, num_heads=96, num_kv_heads=96, head_dim=128,
        hidden_dim=49_152, context_length=2048, activation="relu2", tied_head=True,
    ),
}  # fmt: skip


def get_preset(name: str) -> GPTConfig:
    """The preset of that name; `InputError` with the nearest known name if there is none.

    >>> get_preset("gpt-tiny").dim
    64
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]
