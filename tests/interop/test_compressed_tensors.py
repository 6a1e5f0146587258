"""compressed-tensors reads what is written here, and what it writes is read here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fp4lab
from fp4lab import formats, interop
from tests.interop.models import folder, random_tensor, state
from tests.interop.peers import elsewhere, peer

# it takes seconds to import
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def checkout_out_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", elsewhere())


KINDS = {
    "nvfp4": ("NVFP4A16", "nvfp4-pack-quantized"),
    "mxfp4": ("MXFP4A16", "mxfp4-pack-quantized"),
    "mxfp8_e4m3": ("MXFP8A16", "mxfp8-quantized"),
}
CASES = [
    "nvfp4",
    "nvfp4_compressed_tensors",
    "nvfp4_modelopt",
    "nvfp4_4over6",
    "mxfp4",
    "mxfp8_e4m3",
]


def compressors() -> Any:
    return peer("compressed_tensors.compressors")


def quantization() -> Any:
    return peer("compressed_tensors.quantization")


def helpers() -> Any:
    return peer("compressed_tensors.compressors.nvfp4.helpers")


def forward() -> Any:
    return peer("compressed_tensors.quantization.lifecycle.forward")


def kind(name: str) -> str:
    return next(key for key in KINDS if name.startswith(key))


def scheme(name: str) -> Any:
    preset, fmt = KINDS[kind(name)]
    made = quantization().preset_name_to_scheme(preset, ["Linear"])
    made.format = fmt
    return made


def decompressed(parts: dict[str, Tensor], name: str) -> Tensor:
    tool = compressors().BaseCompressor.get_value_from_registry(KINDS[kind(name)][1])
    return tool.decompress(parts, scheme(name))["weight"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_it_dequantizes_what_is_written_here_to_the_same_values(tmp_path: Path, name: str) -> None:
    q = fp4lab.quantize(random_tensor(64, 128, seed=1), formats.get(name))
    interop.write({"a.weight": q}, tmp_path / "w", layout="compressed-tensors")
    parts = {
        n.removeprefix("a."): t for n, t in load_file(tmp_path / "w/model.safetensors").items()
    }
    theirs = decompressed(parts, name)
    ours = interop.read(tmp_path / "w")["a.weight"]
    assert isinstance(ours, fp4lab.QuantizedTensor)
    assert theirs.abs().max() > 0
    assert torch.equal(theirs, ours.dequantize(theirs.dtype))
    if name.startswith("nvfp4"):
        # decompress gives bfloat16; its arithmetic in float32 is compared too
        unpacked = helpers().unpack_fp4_from_uint8(parts["weight_packed"], 64, 128, torch.float32)
        wide = forward().dequantize(
            x_q=unpacked,
            scale=parts["weight_scale"].float(),
            args=scheme(name).weights,
            global_scale=parts["weight_global_scale"],
            dtype=torch.float32,
        )
        assert torch.equal(wide, ours.dequantize())


def test_it_dequantizes_zeros_to_zeros(tmp_path: Path) -> None:
    file = {"a.weight": torch.zeros(32, 64), "b.weight": random_tensor(32, 64, seed=0)}
    save_file(file, tmp_path / "in.safetensors")
    for name in ("nvfp4", "nvfp4_modelopt"):
        interop.quantize(
            tmp_path / "in.safetensors",
            tmp_path / name,
            format=formats.get(name),
            layout="compressed-tensors",
        )
        found = load_file(tmp_path / name / "model.safetensors")
        parts = {n.removeprefix("a."): t for n, t in found.items() if n.startswith("a.")}
        assert torch.equal(decompressed(parts, name).float(), torch.zeros(32, 64))


@pytest.mark.parametrize("name", list(KINDS))
def test_what_it_compresses_is_read_bit_for_bit(tmp_path: Path, name: str) -> None:
    x = random_tensor(64, 128, seed=2)
    side = 16 if name == "nvfp4" else 32
    parts: dict[str, Tensor] = {"weight": x}
    block = x.reshape(64, -1, side).abs().amax(-1).clamp(min=1e-6)
    if name == "nvfp4":
        parts["weight_global_scale"] = (2688 / x.abs().max()).reshape(1)
        scale = (parts["weight_global_scale"] * (block / 6)).to(torch.float8_e4m3fn)
        parts["weight_scale"] = scale.to(torch.float32)
    else:
        parts["weight_scale"] = 2.0 ** torch.ceil(
            torch.log2(block / (6 if name == "mxfp4" else 448))
        )
    tool = compressors().BaseCompressor.get_value_from_registry(KINDS[name][1])
    theirs = tool.compress(parts, scheme(name))
    theirs = {key: value.contiguous() for key, value in theirs.items()}
    save_file({f"a.{key}": value for key, value in theirs.items()}, tmp_path / "w.safetensors")

    ours = interop.read(tmp_path / "w.safetensors")
    assert ours.layout == "compressed-tensors"
    q = ours["a.weight"]
    assert isinstance(q, fp4lab.QuantizedTensor)
    codes = theirs["weight" if name == "mxfp8_e4m3" else "weight_packed"]
    assert torch.equal(q.codes, codes.view(torch.uint8))
    assert torch.equal(q.scales, theirs["weight_scale"].view(torch.uint8))
    if name == "nvfp4":
        assert torch.equal(q.tensor_scale, theirs["weight_global_scale"])
    values = decompressed(theirs, name)
    assert torch.equal(q.dequantize(values.dtype).float(), values.float())

    interop.write(ours, tmp_path / "again", layout="compressed-tensors")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert {n: (t.dtype, t.shape) for n, t in again.items()} == {
        f"a.{n}": (t.dtype, t.shape) for n, t in theirs.items()
    }
    for key, value in theirs.items():
        assert torch.equal(again[f"a.{key}"].view(torch.uint8), value.view(torch.uint8))


@pytest.mark.parametrize("name", list(KINDS))
def test_the_configuration_is_the_one_it_would_write(tmp_path: Path, name: str) -> None:
    source = folder(tmp_path / "model")
    interop.quantize(
        source, tmp_path / "out", format=formats.get(name), layout="compressed-tensors"
    )
    written = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    made = quantization().QuantizationConfig(
        config_groups={"group_0": scheme(name)},
        format=KINDS[name][1],
        quantization_status="compressed",
        ignore=["lm_head", "model.embed_tokens"],
    )
    expected = json.loads(made.model_dump_json())
    parsed = quantization().QuantizationConfig.model_validate(written)
    assert json.loads(parsed.model_dump_json()) == expected
    assert {key: value for key, value in expected.items() if value is not None} == {
        key: value for key, value in written.items() if value is not None
    }


@pytest.mark.parametrize("name", list(KINDS))
def test_transformers_loads_a_model_and_computes_with_the_same_weights(
    tmp_path: Path, name: str
) -> None:
    transformers = peer("transformers")
    source = folder(tmp_path / "model", state(torch.bfloat16))
    out = tmp_path / "out"
    interop.quantize(source, out, format=formats.get(name), layout="compressed-tensors")
    tensors = interop.read(out)
    plain = {
        key: value.dequantize(torch.bfloat16)
        if isinstance(value, fp4lab.QuantizedTensor)
        else value
        for key, value in tensors.items()
    }
    ours = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(source), dtype=torch.bfloat16
    )
    ours.load_state_dict(plain)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16)
    tokens = torch.arange(32).reshape(2, 16)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens).logits, rtol=0, atol=0)
