"""Small models in files, for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "torch_dtype": "bfloat16",
}
LAYER = "model.layers.0"
LINEAR = {
    f"{LAYER}.self_attn.q_proj.weight": (64, 64),
    f"{LAYER}.self_attn.k_proj.weight": (64, 64),
    f"{LAYER}.self_attn.v_proj.weight": (64, 64),
    f"{LAYER}.self_attn.o_proj.weight": (64, 64),
    f"{LAYER}.mlp.gate_proj.weight": (128, 64),
    f"{LAYER}.mlp.up_proj.weight": (128, 64),
    f"{LAYER}.mlp.down_proj.weight": (64, 128),
}
OTHER = {
    "model.embed_tokens.weight": (96, 64),
    "lm_head.weight": (96, 64),
    "model.norm.weight": (64,),
    f"{LAYER}.input_layernorm.weight": (64,),
    f"{LAYER}.post_attention_layernorm.weight": (64,),
}


def random_tensor(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Gaussian, with a few outliers, an all-zero row and a row that underflows."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * 0.02 * (1 + seed)
    if len(shape) == 2:
        x[0] = 0.0
        x[1] *= 1e-6
        x[2, ::16] *= 30
    return x.to(dtype)


def state(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """The weights of a llama of one block."""
    sizes = LINEAR | OTHER
    return {
        name: random_tensor(*shape, seed=seed, dtype=dtype)
        for seed, (name, shape) in enumerate(sizes.items())
    }


def folder(path: Path, tensors: dict[str, Tensor] | None = None) -> Path:
    """A model of Hugging Face with a tokenizer and a file of a subfolder."""
    path.mkdir(parents=True)
    save_file(tensors or state(), path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer.json").write_text('{"version": "1.0"}')
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text("{}")
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04never read")
    return path


def contents(path: Path) -> dict[str, bytes]:
    """All files at a path with their bytes, hidden ones too."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in files}
