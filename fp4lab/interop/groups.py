"""Projections that inference engines fuse into one matrix, which then has one tensor scale.

vLLM and TensorRT-LLM stack q, k and v, and gate and up; a stacked matrix has room for one tensor
scale, so those of its parts must be equal. The parts are known by their names.
"""

from __future__ import annotations

from collections.abc import Iterable

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
