"""What compressed-tensors and ModelOpt write beside the weights, for Transformers and vLLM.

Weights are quantized here and activations are not, so a configuration says "weights only" (W4A16)
unless every quantized layer brings the scale of its input along from the file it was read from.

Sources: compressed-tensors 0.20.1 (`QuantizationConfig`), nvidia-modelopt 0.47.0
(hf_quant_config.json and `convert_hf_quant_config_format`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fp4lab.errors import InputError
from fp4lab.interop.layouts import LayoutName
from fp4lab.interop.sources import KEY, Source, read_json

HF_QUANT_CONFIG = "hf_quant_config.json"
_METHODS: dict[str, LayoutName] = {
    "compressed-tensors": "compressed-tensors",
    "modelopt": "modelopt",
    "modelopt_fp4": "modelopt",
}
#: loaders know ModelOpt's files by this name; the version is the one whose form is written
_PRODUCER = {"name": "modelopt", "version": "0.47.0"}
#: what ModelOpt calls weights that mean what their codes and scales say
_ALGORITHMS = ("NVFP4", "W4A16_NVFP4", "MXFP4", "MXFP8")
#: words in the names of architectures whose head may share the embedding's weight, and such heads
_HEADS = {
    "ForCausalLM": ("lm_head",),
    "LMHead": ("lm_head",),
    "ForConditionalGeneration": ("lm_head",),
    "ForMaskedLM": (
        "lm_head.decoder",
        "cls.predictions.decoder",
        "predictions.decoder",
        "vocab_projector",
        "generator_lm_head",
        "decoder",
    ),
    "ForPreTraining": ("cls.predictions.decoder", "predictions.decoder"),
}


def _described(source: Source) -> tuple[dict[str, Any], dict[str, Any]]:
    """What config.json and hf_quant_config.json say of how a model is quantized."""
    inner = source.config.get(KEY)
    file = None if source.folder is None else source.folder / HF_QUANT_CONFIG
    other = read_json(file).get("quantization") if file is not None and file.is_file() else None
    return inner if isinstance(inner, dict) else {}, other if isinstance(other, dict) else {}


def layout_of_config(source: Source) -> LayoutName | None:
    """The layout that config.json or hf_quant_config.json names; None where neither does.

    Raises:
        InputError: a method or an algorithm that is not read here, or two that differ.
    """
    found: dict[str, LayoutName] = {}
    described, other = _described(source)
    if isinstance(source.config.get(KEY), dict):
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
    for table in (described, other):
        algorithm = table.get("quant_algo")
        if algorithm is not None and algorithm not in _ALGORITHMS:
            raise InputError(
                f"{source.path}: it was quantized with quant_algo={algorithm!r}; read are "
                f"{', '.join(_ALGORITHMS)}: export it again with one of these"
            )
        if table.get("transform_config"):
            raise InputError(
                f"{source.path}: its weights are transformed (transform_config), which is not read "
                "here; export it without transforms"
            )
    return next(iter(found.values()), None)


def carried(source: Source) -> dict[str, dict[str, Any]]:
    """The JSON files of a model that is written in the layout it has; empty without any."""
    if not any(_described(source)):
        return {}
    files_ = {"config.json": dict(source.config)} if source.config else {}
    if source.folder is not None and (source.folder / HF_QUANT_CONFIG).is_file():
        files_[HF_QUANT_CONFIG] = read_json(source.folder / HF_QUANT_CONFIG)
    return files_


def check_moved(source: Source, layout: str, *, inputs: bool) -> None:
    """InputError for what the configuration of a model says and another layout would lose.

    Args:
        source: the model.
        layout: the other layout.
        inputs: whether the scales of all inputs go along.
    """
    for table in _described(source):
        cache = table.get("kv_cache_scheme") or table.get("kv_cache_quant_algo")
        groups = table.get("config_groups")
        groups = groups.values() if isinstance(groups, dict) else ()
        acts = any(isinstance(g, dict) and g.get("input_activations") for g in groups)
        lost = "its key-value cache is quantized too" if cache else ""
        if acts and not inputs:
            lost = "its inputs are quantized too, by scales that no file holds"
        if lost:
            raise InputError(
                f"{source.path}: {lost}, which the layout {layout} would lose; write it in "
                "the layout it has, or export it with quantized weights only"
            )


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


def kept_layers(
    plain: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], quantized: Collection[str] = ()
) -> list[str]:
    """Layers among the names and sizes that are not quantized, and heads without a weight.

    >>> kept_layers({"embed.weight": (100, 16), "norm.weight": (16,)}, {})
    ['embed']
    >>> kept_layers({"embed.weight": (100, 16)}, {"architectures": ["LlamaForCausalLM"]})
    ['embed', 'lm_head']
    """
    kept = sorted(
        name.removesuffix(".weight")
        for name, shape in plain.items()
        if name.endswith(".weight") and len(shape) == 2
    )
    heads = [
        head
        for one in config.get("architectures") or ()
        for word, found in _HEADS.items()
        if word in one
        for head in found
    ]
    # a head whose weight is not there shares the embedding's, which is kept
    there = {*plain, *quantized}
    return kept + [head for head in dict.fromkeys(heads) if f"{head}.weight" not in there]


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
