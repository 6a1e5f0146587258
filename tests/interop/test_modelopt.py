"""ModelOpt reads what is written here, and what it writes is read here."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fp4lab
from fp4lab import formats, interop
from tests.interop.models import folder, random_tensor
from tests.interop.peers import peer

# it takes seconds to import
pytestmark = pytest.mark.slow


def modelopt(module: str) -> Any:
    with warnings.catch_warnings():
        # what it warns of while it is imported is about packages that it would like to have
        warnings.simplefilter("ignore")
        return peer(f"modelopt.torch.{module}")


def tool(kind: str) -> Any:
    return getattr(modelopt("quantization.qtensor"), f"{kind.upper()}QTensor")


def dequantized(kind: str, parts: dict[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    tensor = tool(kind)(torch.Size(shape), torch.float32, parts["weight"])
    side = {"nvfp4": 16}.get(kind, 32)
    scales = parts["weight_scale"]
    if kind == "mxfp4":
        # it takes one scale a row of blocks
        scales = scales.reshape(-1, 1)
    more = {"double_scale": parts["weight_scale_2"]} if kind == "nvfp4" else {}
    values: Tensor = tensor.dequantize(
        dtype=torch.float32, scale=scales, block_sizes={-1: side}, **more
    )
    return values.reshape(shape)


@pytest.mark.parametrize(
    "name",
    ["nvfp4", "nvfp4_modelopt", "nvfp4_compressed_tensors", "nvfp4_4over6", "mxfp4", "mxfp8_e4m3"],
)
def test_it_dequantizes_what_is_written_here_to_the_same_values(tmp_path: Path, name: str) -> None:
    q = fp4lab.quantize(random_tensor(64, 128, seed=1), formats.get(name))
    interop.write({"a.weight": q}, tmp_path / "w", layout="modelopt")
    parts = {
        n.removeprefix("a."): t for n, t in load_file(tmp_path / "w/model.safetensors").items()
    }
    theirs = dequantized(name[:5], parts, (64, 128))
    ours = interop.read(tmp_path / "w")["a.weight"]
    assert isinstance(ours, fp4lab.QuantizedTensor)
    assert theirs.abs().max() > 0
    assert torch.equal(theirs, ours.dequantize())


def test_it_dequantizes_zeros_to_zeros(tmp_path: Path) -> None:
    save_file(
        {"a.weight": torch.zeros(32, 64), "b.weight": random_tensor(32, 64, seed=0)},
        tmp_path / "in.safetensors",
    )
    for name in ("nvfp4", "nvfp4_modelopt"):
        out = tmp_path / name
        source = tmp_path / "in.safetensors"
        interop.quantize(source, out, format=formats.get(name), layout="modelopt")
        found = load_file(out / "model.safetensors")
        assert torch.equal(found["a.weight_scale_2"], torch.tensor(1.0))
        parts = {n.removeprefix("a."): t for n, t in found.items() if n.startswith("a.")}
        assert torch.equal(dequantized("nvfp4", parts, (32, 64)), torch.zeros(32, 64))


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4", "mxfp8"])
def test_what_it_quantizes_is_read_bit_for_bit(tmp_path: Path, kind: str) -> None:
    x = random_tensor(64, 128, seed=2)
    theirs = tool(kind)
    if kind == "nvfp4":
        made, scales, outer = theirs.quantize(x.clone(), 16)
        parts = {"weight_scale": scales, "weight_scale_2": outer}
    elif kind == "mxfp4":
        made, scales = theirs.quantize(x.clone(), 32)
        parts = {"weight_scale": scales.reshape(64, 4)}
    else:
        made, scales = theirs.quantize(x.clone())
        parts = {"weight_scale": scales}
    parts["weight"] = made._quantized_data
    save_file({f"a.{n}": t.contiguous() for n, t in parts.items()}, tmp_path / "w.safetensors")
    (tmp_path / "hf_quant_config.json").write_text("{}")

    read = interop.read(tmp_path / "w.safetensors")
    q = read["a.weight"]
    assert isinstance(q, fp4lab.QuantizedTensor)
    assert torch.equal(q.codes, parts["weight"].view(torch.uint8))
    assert torch.equal(q.scales, parts["weight_scale"].view(torch.uint8))
    if kind == "nvfp4":
        assert read.layout == "modelopt"
        assert torch.equal(q.tensor_scale, parts["weight_scale_2"].reshape(1))
    assert torch.equal(q.dequantize(), dequantized(kind, parts, (64, 128)))
    interop.write(read, tmp_path / "again", layout="modelopt")
    again = load_file(tmp_path / "again" / "model.safetensors")
    for name, value in parts.items():
        assert again[f"a.{name}"].shape == value.shape
        assert torch.equal(
            again[f"a.{name}"].view(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8)
        )


def test_a_file_in_its_arithmetic_is_the_one_that_it_would_write(tmp_path: Path) -> None:
    x = random_tensor(64, 128, seed=2)
    save_file({"a.weight": x}, tmp_path / "in.safetensors")
    for name in ("nvfp4_modelopt", "mxfp4_modelopt"):
        out, kind = tmp_path / name, name[:5]
        fmt = formats.get(name)
        interop.quantize(tmp_path / "in.safetensors", out, format=fmt, layout="modelopt")
        found = load_file(out / "model.safetensors")
        made, scales, *outer = tool(kind).quantize(x.clone(), 16 if kind == "nvfp4" else 32)
        assert torch.equal(found["a.weight"], made._quantized_data)
        scales = scales.view(torch.uint8).reshape(64, -1)
        assert torch.equal(found["a.weight_scale"].view(torch.uint8), scales)
        for scale in outer:
            assert torch.equal(found["a.weight_scale_2"], scale)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("nvfp4", "W4A16_NVFP4"), ("mxfp4", "MXFP4"), ("mxfp8_e4m3", "MXFP8")],
)
def test_the_configuration_is_the_one_it_makes(tmp_path: Path, name: str, algorithm: str) -> None:
    out = tmp_path / "out"
    interop.quantize(folder(tmp_path / "in"), out, format=formats.get(name), layout="modelopt")
    described = json.loads((out / "hf_quant_config.json").read_text())
    assert described["quantization"] == {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": None,
        "group_size": 16 if name == "nvfp4" else 32,
        "exclude_modules": ["lm_head", "model.embed_tokens"],
    }
    embedded = json.loads((out / "config.json").read_text())["quantization_config"]
    convert = modelopt("export.convert_hf_config").convert_hf_quant_config_format
    assert embedded == convert(described)
