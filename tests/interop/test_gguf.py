"""The gguf package reads what is written here, and what it writes is read here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fp4lab
from fp4lab import formats, interop
from fp4lab.interop import gguf_files
from tests.interop.models import random_tensor

gguf: Any = pytest.importorskip("gguf", reason="compares with the gguf package")


def tensors_of(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("name", ["nvfp4", "nvfp4_modelopt", "nvfp4_one_level", "mxfp4"])
def test_it_dequantizes_what_is_written_here_to_the_same_values(tmp_path: Path, name: str) -> None:
    q = fp4lab.quantize(random_tensor(64, 128, seed=1), formats.get(name))
    plain = {
        "b.bias": random_tensor(64, seed=2),
        "c": torch.arange(3),
        "d": random_tensor(4, 3, seed=1, dtype=torch.float16),
    }
    interop.write({"a.weight": q, **plain}, tmp_path / "w.gguf", layout="gguf")
    found = tensors_of(tmp_path / "w.gguf")
    assert found["a.weight"].shape.tolist() == [128, 64]
    values = gguf.quants.dequantize(found["a.weight"].data, found["a.weight"].tensor_type)
    ours = interop.read(tmp_path / "w.gguf")["a.weight"]
    assert isinstance(ours, fp4lab.QuantizedTensor)
    assert np.abs(values).max() > 0
    if "a.scale" in found:
        # the blocks alone are exact; llama.cpp multiplies by the scale after them, and
        # fp4lab multiplies the block scale by it: two roundings in either order
        scale = found["a.scale"].data
        assert scale.shape == (1,)
        exact = values.astype(np.float64) * scale.astype(np.float64)
        np.testing.assert_allclose(ours.dequantize().numpy(), exact, rtol=2 * 2.0**-24, atol=0)
        alone = fp4lab.QuantizedTensor(
            ours.codes, ours.scales, torch.empty(0), formats.NVFP4_ONE_LEVEL, ours.shape
        )
        assert np.array_equal(alone.dequantize().numpy(), values)
    else:
        assert np.array_equal(ours.dequantize().numpy(), values)
    for key, value in plain.items():
        data = found[key].data
        assert np.array_equal(data.reshape(tuple(value.shape)), value.numpy())


def test_what_it_quantizes_is_read_bit_for_bit(tmp_path: Path) -> None:
    """MXFP4, which it can quantize; every byte of NVFP4 blocks, which it cannot."""
    x = random_tensor(64, 128, seed=2).numpy()
    mxfp4 = gguf.quants.quantize(x, gguf.GGMLQuantizationType.MXFP4)
    generator = np.random.default_rng(0)
    nvfp4 = generator.integers(0, 256, (16, 2, 36), dtype=np.uint8)
    nvfp4[..., :4] &= 0x7F
    nvfp4[..., :4] %= 0x7F  # its NaN decodes to 0 there, and to NaN here
    nvfp4 = nvfp4.reshape(16, 72)
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 1)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", ""])
    for name, data, kind in (("a.weight", mxfp4, "MXFP4"), ("b.weight", nvfp4, "NVFP4")):
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.add_tensor("b.scale", np.array([0.25], np.float32))
    writer.add_tensor("norm", np.ones(5, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    read = interop.read(path)
    assert read.layout == "gguf"
    assert set(read) == {"a.weight", "b.weight", "norm"}
    a, b = read["a.weight"], read["b.weight"]
    assert isinstance(a, fp4lab.QuantizedTensor)
    assert isinstance(b, fp4lab.QuantizedTensor)
    theirs = gguf.quants.dequantize(mxfp4, gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(a.dequantize().numpy(), theirs)
    theirs = gguf.quants.dequantize(nvfp4, gguf.GGMLQuantizationType.NVFP4)
    assert np.array_equal(b.dequantize().numpy(), theirs * np.float32(0.25))

    again = tmp_path / "ours.gguf"
    interop.write(read, again, layout="gguf")
    found = tensors_of(again)
    assert np.array_equal(found["a.weight"].data, mxfp4)
    assert np.array_equal(found["b.weight"].data, nvfp4)
    assert found["b.scale"].data.tolist() == [0.25]
    fields = gguf.GGUFReader(again).fields
    assert fields["llama.block_count"].contents() == 1
    assert fields["general.architecture"].contents() == "llama"
    assert fields["tokenizer.ggml.tokens"].contents() == ["a", "bc", ""]


def test_both_names_of_a_tensor_scale_are_read(tmp_path: Path) -> None:
    q = fp4lab.quantize(random_tensor(16, 64, seed=0), formats.NVFP4)
    path = tmp_path / "w.gguf"
    interop.write({"a.weight": q}, path, layout="gguf")
    data = path.read_bytes()
    # a name of the same length, where another converter puts the scale
    interop.write({"weight": q}, tmp_path / "v.gguf", layout="gguf")
    named = interop.read(path)["a.weight"]
    assert named.equal(interop.read(tmp_path / "v.gguf")["weight"])  # type: ignore[union-attr,arg-type]
    assert b"a.scale" in data
    assert b"weight.scale" in (tmp_path / "v.gguf").read_bytes()


def test_types_are_those_of_the_package() -> None:
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    for number, ours in gguf_files.TYPES.items():
        assert theirs[number] == ours


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q4_K", "BF16"])
def test_other_types_are_quantized_from_the_values_that_it_gives(tmp_path: Path, kind: str) -> None:
    x = random_tensor(64, 256, seed=1).numpy()
    number = gguf.GGMLQuantizationType[kind]
    if kind == "Q4_K":
        data = np.random.default_rng(0).integers(0, 60, (64, 144), dtype=np.uint8)
    else:
        data = gguf.quants.quantize(x, number)
    writer = gguf.GGUFWriter(tmp_path / "in.gguf", "llama")
    writer.add_tensor("blk.0.ffn_up.weight", data, raw_dtype=number)
    writer.add_tensor("token_embd.weight", data, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    done = interop.quantize(
        tmp_path / "in.gguf", tmp_path / "out.gguf", format=formats.NVFP4_MODELOPT, layout="gguf"
    )
    assert [(row.name, row.kept) for row in done.rows] == [
        ("blk.0.ffn_up.weight", ""),
        ("token_embd.weight", "embedding"),
    ]
    values = torch.from_numpy(gguf.quants.dequantize(data, number).copy())
    expected = fp4lab.quantize(values, formats.NVFP4_MODELOPT)
    found = interop.read(tmp_path / "out.gguf")
    assert found["blk.0.ffn_up.weight"].equal(expected)  # type: ignore[union-attr,arg-type]
    kept = tensors_of(tmp_path / "out.gguf")["token_embd.weight"]
    assert kept.tensor_type == number
    assert kept.data.tobytes() == data.tobytes()
    assert gguf.GGUFReader(tmp_path / "out.gguf").fields["general.file_type"].contents() == 39
