"""A decoder-only transformer: RMSNorm, RoPE, grouped-query attention, SwiGLU or squared ReLU.

    x = embedding(tokens)
    x = x + attention(attention_norm(x));  x = x + mlp(mlp_norm(x))      for every block
    logits = head(final_norm(x))

Queries, keys and values are one `Linear` layer, as in Megatron-LM: they share their input, so it is
quantized once, and the weights share one tensor scale. No layer has a bias. Left out: dropout and
learned positions (not used at these scales today), a key-value cache (`train.generation` says why),
query-key norms, logit soft-capping.

Shape letters: B batch, T position, D model width, H head, K channel of a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fp4lab.errors import InputError
from fp4lab.models.gpt_config import GPTConfig
from fp4lab.models.rope import apply_rope, rope_tables

RopeTables = tuple[Tensor, Tensor]


def _empty(kind: type[nn.Module], rows: int, columns: int, **options: bool) -> Any:
    """A Linear or Embedding with its weight left unset: `GPT.reset_parameters` draws every weight.

    torch's own initial values would cost time and advance the generator, so that building a model
    and resetting one under the same seed would differ.
    """
    device = torch.get_default_device()
    return nn.utils.skip_init(kind, rows, columns, device=device, **options)


def _linear(in_features: int, out_features: int) -> nn.Linear:
    return cast(nn.Linear, _empty(nn.Linear, in_features, out_features, bias=False))


class Attention(nn.Module):
    """Causal grouped-query attention: [B, T, D] to [B, T, D]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.grouped = config.num_kv_heads < config.num_heads
        self.heads = (config.num_heads, config.num_kv_heads)
        all_heads = config.num_heads + 2 * config.num_kv_heads
        # rows: queries of all heads, then keys, then values
        self.qkv = _linear(config.dim, all_heads * config.head_dim)
        self.out = _linear(config.num_heads * config.head_dim, config.dim)

    def forward(self, x_BTD: Tensor, rope: RopeTables) -> Tensor:
        """Attend from every position to itself and the ones before it."""
        num_heads, num_kv_heads = self.heads
        qkv_BTHK = self.qkv(x_BTD).unflatten(2, (-1, self.head_dim))
        qk_BTHK, v_BTHK = qkv_BTHK.split((num_heads + num_kv_heads, num_kv_heads), dim=2)
        q_BTHK, k_BTHK = apply_rope(qk_BTHK, rope).split(self.heads, dim=2)
        y_BHTK = F.scaled_dot_product_attention(
            q_BTHK.transpose(1, 2),
            k_BTHK.transpose(1, 2),
            v_BTHK.transpose(1, 2),
            is_causal=True,
            enable_gqa=self.grouped,
        )
        return cast(Tensor, self.out(y_BHTK.transpose(1, 2).flatten(2)))


class MLP(nn.Module):
    """`down(silu(gate(x)) * up(x))`, or `down(relu(up(x))**2)`: [B, T, D] to [B, T, D]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        gated = config.activation == "swiglu"
        self.gate = _linear(config.dim, config.hidden_dim) if gated else None
        self.up = _linear(config.dim, config.hidden_dim)
        self.down = _linear(config.hidden_dim, config.dim)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Apply the MLP to every position by itself."""
        up = self.up(x_BTD)
        hidden = F.relu(up).square() if self.gate is None else F.silu(self.gate(x_BTD)) * up
        return cast(Tensor, self.down(hidden))


class Block(nn.Module):
    """Attention and MLP, each behind its norm and added to the residual stream."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x_BTD: Tensor, rope: RopeTables) -> Tensor:
        """Advance the residual stream by one block."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), rope)
        return cast(Tensor, x_BTD + self.mlp(self.mlp_norm(x_BTD)))


class GPT(nn.Module):
    """The language model of a `GPTConfig`.

    The initial weights depend only on torch's seed (of the device they are made on):

    >>> from fp4lab.models import GPT, get_preset
    >>> _ = torch.manual_seed(0)
    >>> model = GPT(get_preset("gpt-tiny"))
    >>> model(torch.zeros(2, 10, dtype=torch.int64)).shape
    torch.Size([2, 10, 256])

    For a model too large for one device: build under `torch.device("meta")`, shard, `to_empty`,
    seed, `reset_parameters`.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding: nn.Embedding = _empty(nn.Embedding, config.vocab_size, config.dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_blocks))
        self.final_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.head = _linear(config.dim, config.vocab_size)
        self._tie()
        self.reset_parameters()

    def _tie(self) -> None:
        if self.config.tied_head:
            self.head.weight = self.embedding.weight

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> GPT:
        # Module._apply gives each owner of a shared parameter its own copy when it changes kind
        # (meta to a device in to_empty), which would silently untie the head.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._tie()
        return self

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters anew, in module order, from torch's generator.

        Norms become one; weights are normal with `init_std`, but `attention.out` and `mlp.down`
        with `init_std / sqrt(2 * num_blocks)`: the residual stream is the sum of 2 * num_blocks
        outputs and so starts no wider than with one (GPT-2, section 2.3).
        """
        std = self.config.init_std
        residual_std = std * (2 * self.config.num_blocks) ** -0.5
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                nn.init.ones_(parameter)
            elif name.endswith(("attention.out.weight", "mlp.down.weight")):
                nn.init.normal_(parameter, std=residual_std)
            else:
                nn.init.normal_(parameter, std=std)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Next-token logits: integer tokens [B, T] to float32 [B, T, V].

        Position t sees tokens 0 to t only. `InputError` if T exceeds `context_length` or the shape
        is not [B, T]; a token outside the vocabulary is torch's IndexError.
        """
        if tokens_BT.ndim != 2:
            raise InputError(f"tokens has shape {tuple(tokens_BT.shape)}; it must be [batch, time]")
        length = tokens_BT.shape[1]
        self._check_length("tokens.shape[1]", length)
        rope = rope_tables(
            length, self.config.head_dim, base=self.config.rope_base, device=tokens_BT.device
        )
        x_BTD = self.embedding(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, rope)
        return cast(Tensor, self.head(self.final_norm(x_BTD))).float()

    def _check_length(self, argument: str, length: int) -> None:
        limit = self.config.context_length
        if length > limit:
            raise InputError(
                f"{argument}={length} is longer than context_length={limit}; "
                "cut the sequence or configure a longer context"
            )

    def num_parameters(self, *, embedding: bool = False) -> int:
        """The number of parameters, with or without the embedding and the head.

        A tied head counts once. Scaling laws count without (Kaplan et al., arXiv 2001.08361).
        """
        ends = {self.embedding.weight, self.head.weight}
        return sum(p.numel() for p in self.parameters() if embedding or p not in ends)

    def flops_per_token(self, sequence_length: int) -> int:
        """Floating-point operations of one training step per token, for model FLOPs utilisation.

            6 * N + 12 * num_blocks * num_heads * head_dim * sequence_length

        N counts the weights of matrix products, the head's among them but no embedding look-up and
        no norm. Forward takes a multiplication and an addition per weight, backward twice that. The
        second term is the two attention products (2 * 2 operations per channel and key, times 3),
        with all T keys counted although a causal mask needs half of them. Recomputation does not
        count. PaLM (arXiv 2204.02311, appendix B); the same as Megatron's count (arXiv 2104.04473,
        equation 3) without its recomputed forward.
        """
        self._check_length("sequence_length", sequence_length)
        shape = self.config
        weights = sum(p.numel() for p in self.blocks.parameters() if p.ndim == 2)
        weights += self.head.weight.numel()
        attention = shape.num_blocks * shape.num_heads * shape.head_dim * sequence_length
        return 6 * weights + 12 * attention
