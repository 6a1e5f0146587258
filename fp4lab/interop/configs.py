"""What compressed-tensors and ModelOpt write beside the weights, for Transformers and vLLM.

Weights are quantized here and activations are not, so a configuration says "weights only" (W4A16)
unless every quantized layer brings the scale of its input along from the file it was read from.

Sources: compressed-tensors 0.20.1 (`QuantizationConfig`), nvidia-modelopt 0.47.0
(hf_quant_config.json and `convert_hf_quant_config_format`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fp4lab.errors import InputError
from fp4lab.interop.layouts import LayoutName
from fp4lab.interop.sources import KEY, Source

HF_QUANT_CONFIG = "hf_quant_config.json"
_METHODS: dict[str, LayoutName] = {
    "compressed-tensors": "compressed-tensors",
    "modelopt": "modelopt",
    "modelopt_fp4": "modelopt",
}
#: loaders know ModelOpt's files by this name; the version is the one whose form is written
_PRODUCER = {"name": "modelopt", "version": "0.47.0"}
#: words in the names of architectures whose head may share the embedding's weight
_HEADS = ("ForCausalLM", "LMHead", "ForConditionalGeneration")


def layout_of_config(source: Source) -> LayoutName | None:
    """The layout that config.json or hf_quant_config.json names; None where neither does.

    Raises:
        InputError: a method that is not read here, or two that differ.
    """
    found: dict[str, LayoutName] = {}
    described = source.config.get(KEY)
    if isinstance(described, dict):
        method = str(described.get("quant_method", "compressed-tensors"))
        if method not in _METHODS:
            raise InputError(
                f"{source.path}: its config.json says quant_method={method!r}; read are "
                "compressed-tensors and modelopt: dequantize the model with the tool it comes from"
            )
        found["config.json"] = _METHODS[method]
    if source.folder is not None and (source.folder / HF_QUANT_CONFIG).exists():
        found[HF_QUANT_CONFIG] = "modelopt"
    if len(set(found.values())) > 1:
        said = " and ".join(f"{file} says {layout}" for file, layout in found.items())
        raise InputError(
            f"{source.path}: {said}; the two store tensor scales in opposite directions: export it "
            "again with one tool"
        )
    return next(iter(found.values()), None)


@dataclass(frozen=True)
class Described:
    """What a configuration is made of.

    Attributes:
        kind: "nvfp4", "mxfp4" or "mxfp8".
        kept: names of layers that are not quantized.
        inputs: whether every quantized layer has the scale of its input.
    """

    kind: str
    kept: Sequence[str]
    inputs: bool


def kept_layers(plain: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> list[str]:
    """Layers among the names and sizes that are not quantized, and a head without a weight.

    >>> kept_layers({"embed.weight": (100, 16), "norm.weight": (16,)}, {})
    ['embed']
    """
    kept = sorted(
        name.removesuffix(".weight")
        for name, shape in plain.items()
        if name.endswith(".weight") and len(shape) == 2
    )
    architectures = config.get("architectures") or ()
    has_head = any(word in str(one) for one in architectures for word in _HEADS)
    if has_head and "lm_head.weight" not in plain:
        # it shares the embedding's weight, which is kept
        kept.append("lm_head")
    return kept


def files(
    layout: LayoutName, described: Described, config: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The JSON files of a folder in a layout, by name; `config` is the model's own config.json."""
    rest = {key: value for key, value in config.items() if key != KEY}
    if layout == "compressed-tensors":
        return {"config.json": rest | {KEY: _compressed_tensors(described)}}
    if layout == "modelopt":
        hf_quant_config, embedded = _modelopt(described)
        return {"config.json": rest | {KEY: embedded}, HF_QUANT_CONFIG: hf_quant_config}
    return {"config.json": rest} if rest else {}


def _compressed_tensors(described: Described) -> dict[str, Any]:
    nvfp4 = described.kind == "nvfp4"
    name = {
        "nvfp4": "nvfp4-pack-quantized",
        "mxfp4": "mxfp4-pack-quantized",
        "mxfp8": "mxfp8-quantized",
    }[described.kind]
    arguments: dict[str, Any] = {
        "num_bits": 8 if described.kind == "mxfp8" else 4,
        "type": "float",
        "symmetric": True,
        "strategy": "tensor_group" if nvfp4 else "group",
        "group_size": 16 if nvfp4 else 32,
        "scale_dtype": "torch.float8_e4m3fn" if nvfp4 else "torch.uint8",
    }
    # the only inputs whose scale is in a file are those of NVFP4
    local = {"dynamic": "local", "observer": "static_minmax"}
    group = {
        "targets": ["Linear"],
        "weights": arguments | {"dynamic": False},
        "input_activations": arguments | local if described.inputs else None,
        "output_activations": None,
        "format": name,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(described.kept),
        "kv_cache_scheme": None,
    }


def _modelopt(described: Described) -> tuple[dict[str, Any], dict[str, Any]]:
    nvfp4 = described.kind == "nvfp4"
    weights_only = nvfp4 and not described.inputs
    algorithm = "W4A16_NVFP4" if weights_only else described.kind.upper()
    hf_quant_config = {
        "producer": _PRODUCER,
        "quantization": {
            "quant_algo": algorithm,
            "kv_cache_quant_algo": None,
            "group_size": 16 if nvfp4 else 32,
            "exclude_modules": list(described.kept),
        },
    }
    embedded: dict[str, Any] = {}
    if nvfp4:
        arguments = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
        inputs = {} if weights_only else {"input_activations": arguments}
        group = inputs | {"weights": arguments, "targets": ["Linear"]}
        embedded["config_groups"] = {"group_0": group}
    embedded |= {
        "ignore": list(described.kept),
        "quant_algo": algorithm,
        "producer": _PRODUCER,
        "quant_method": "modelopt",
    }
    return hf_quant_config, embedded


#: names of the scale of a layer's input, and whether it is an encode scale
INPUT_SCALES: dict[str, tuple[str, bool]] = {
    "compressed-tensors": ("input_global_scale", True),
    "modelopt": ("input_scale", False),
    "gguf": ("input_scale", False),
}


def input_scale_name(name: str, source: str | None, layout: str) -> tuple[str, bool]:
    """The name of a tensor in another layout, and whether it is to be inverted on the way.

    >>> input_scale_name("l.q.input_scale", "modelopt", "compressed-tensors")
    ('l.q.input_global_scale', True)
    >>> input_scale_name("l.q.bias", "modelopt", "compressed-tensors")
    ('l.q.bias', False)
    """
    if source not in INPUT_SCALES or layout not in INPUT_SCALES:
        return name, False
    (old, encodes), (new, other) = INPUT_SCALES[source], INPUT_SCALES[layout]
    stem, dot, word = name.rpartition(".")
    return (stem + dot + new, encodes != other) if word == old else (name, False)


def have_inputs(layout: str, weights: Iterable[str], plain: Iterable[str]) -> bool:
    """Whether each quantized layer has the scale of its input among the plain tensors."""
    if layout not in INPUT_SCALES:
        return False
    names = set(plain)
    layers = [name.removesuffix("weight") + INPUT_SCALES[layout][0] for name in weights]
    return bool(layers) and all(layer in names for layer in layers)
