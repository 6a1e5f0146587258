"""What the names of tensors say: which stay as they are and why, and which share a tensor scale.

vLLM and TensorRT-LLM stack q, k and v, and gate and up; a stacked matrix has room for one tensor
scale, so those of its parts must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat
from fp4lab.interop.entries import Entry
from fp4lab.interop.layouts import Layout
from fp4lab.recipes import Layer, Rule
from fp4lab.recipes.rules import HEAD_IN_BF16

#: what names say, by the words in them
_WORDS = {
    "embedding": re.compile(
        r"embed|(^|[._])emb(\.|$)|(^|\.)(wte|wpe|token_embd|position_embd|shared|\w+_token)$"
    ),
    "norm": re.compile(r"norm|(^|\.)ln_?\w*$"),
    "router": re.compile(
        r"router|(^|\.)(mlp|block_sparse_moe|moe|ffn|feed_forward)\.gate(\.wg)?$|gate_inp"
        r"|(^|\.)shared_experts?_gate$"
    ),
    "head": re.compile(
        r"(^|\.)(lm_heads?|v_head|classifier|score|pre_classifier|vocab_projector|vocab_transform"
        r"|qa_outputs|lm_predictions|generator_predictions|discriminator_predictions)(\.|$)"
        r"|^(cls|predictions)\."
    ),
    "bias": re.compile(r"(^|[._])(bias|bias_table|alibi|slopes)$|(^|\.)relative_attention_bias"),
    "no weight of a layer": re.compile(r"(^|\.)(A_log|inv_freq)$"),
}
#: parts of what other tools have quantized: a name's last word, which says it alone
_FOREIGN = {"qweight", "qzeros", "weight_scale_inv", "absmax", "quant_map", "SCB"}
#: models whose layers are stored as [inputs, outputs], so that blocks would run the wrong way
_TRANSPOSED = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
_CONV1D = re.compile(r"(^|\.)(c_attn|c_proj|c_fc|q_attn)$")

#: the last words of names (before ".weight") of what is fused, in models of Hugging Face and GGUF
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("wq", "wk", "wv"),
    ("attn_q", "attn_k", "attn_v"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("gate_proj", "up_proj"),
    ("ffn_gate", "ffn_up"),
    ("w1", "w3"),
)
_GROUP = {word: words for words in FUSED for word in words}


def reasons(
    entries: Mapping[str, Entry],
    fmt: BlockFormat,
    how: Layout,
    *,
    patterns: Sequence[str],
    config: Mapping[str, Any],
) -> dict[str, str]:
    """Why each tensor is kept; "" for those that are quantized.

    Raises:
        InputError: a pattern that matches no tensor, for that is a typing mistake.
    """
    rules = [Rule(pattern=pattern) for pattern in patterns]
    unused = {rule.pattern for rule in rules}
    found: dict[str, str] = {}
    for name, entry in entries.items():
        layer = name.removesuffix(".weight")
        matching = [r.pattern for r in rules if r.match(Layer(name)) or r.match(Layer(layer))]
        unused.difference_update(matching)
        asked = f"keep={matching[0]!r}" if matching else ""
        found[name] = _reason(entry, layer, config) or asked or how.refusal(name, entry.shape, fmt)
    if unused:
        raise InputError(
            f"keep={sorted(unused)[0]!r} matches no tensor; names are such as "
            f"{next(iter(entries), '')!r}, and * stands for any part of one"
        )
    return found


def foreign(entries: Mapping[str, Entry]) -> str:
    """The name of a part of what another tool has quantized (GPTQ, AWQ, MLX, FP8); "" without.

    Scales alone do not say it, but beside codes.
    """
    for name in entries:
        stem, _, word = name.rpartition(".")
        weight = entries.get(f"{stem}.weight")
        codes = weight is not None and not weight.has_values
        blocks = entries.get(f"{name.removesuffix('_scales')}_blocks")
        if word in _FOREIGN or (word == "scales" and codes):
            return name
        if name.endswith("_scales") and blocks is not None:
            return name
    return ""


def _reason(entry: Entry, layer: str, config: Mapping[str, Any]) -> str:
    """What speaks against quantizing a tensor in any format and layout."""
    if not entry.has_values:
        return entry.dtype
    if len(entry.shape) != 2:
        return "bias" if layer.rpartition(".")[2] == "bias" else f"{len(entry.shape)}-D"
    if HEAD_IN_BF16.match(Layer(layer)):
        return "head"
    if _CONV1D.search(layer):
        kind = config.get("model_type")
        if kind is None:
            return "stored as [inputs, outputs] in GPT-2, and no config.json says what it is"
        if kind in _TRANSPOSED:
            return "stored as [inputs, outputs]"
    return next((what for what, words in _WORDS.items() if words.search(layer)), "")


def fused(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The names that share a tensor scale with others, each with all of its group.

    >>> names = ["l.0.attn.q_proj.weight", "l.0.attn.k_proj.weight", "l.1.attn.q_proj.weight"]
    >>> fused(names)["l.0.attn.k_proj.weight"]
    ('l.0.attn.q_proj.weight', 'l.0.attn.k_proj.weight')
    >>> "l.1.attn.q_proj.weight" in fused(names)
    False
    """
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name in names:
        parent, _, word = name.removesuffix(".weight").rpartition(".")
        if word in _GROUP:
            groups.setdefault((parent, _GROUP[word]), []).append(name)
    together = [tuple(group) for group in groups.values() if len(group) > 1]
    return {name: group for group in together for name in group}
