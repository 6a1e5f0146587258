"""Files of quantized tensors: no pickle, nothing lost, and every defect named."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import fp4lab
from fp4lab import QuantizedTensor
from fp4lab import formats as f
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat

FORMATS = [f.get(name) for name in f.names()]
MINE = f.NVFP4.replace(
    name="mine", element=f.ElementType("e1m2", 1, 2, 1), scale=f.UE5M3, scale_floor=2.0**-6
)


@pytest.mark.parametrize("fmt", [*FORMATS, MINE], ids=lambda fmt: fmt.name)
def test_every_format_comes_back(fmt: BlockFormat, tmp_path: Path) -> None:
    x = torch.randn(2, 16, 48)
    saved = {
        "w": fp4lab.quantize(x, fmt, ragged="pad"),
        "turned": fp4lab.quantize(x, fmt, axis=-2, ragged="pad"),
        "empty": fp4lab.quantize(x[:0], fmt, ragged="pad"),
        "plain": x.transpose(0, 1),
    }
    fp4lab.save(saved, tmp_path / "w.safetensors")
    loaded = fp4lab.load(tmp_path / "w.safetensors")
    assert set(loaded) == set(saved)
    for name, tensor in saved.items():
        back = loaded[name]
        if isinstance(tensor, QuantizedTensor):
            assert isinstance(back, QuantizedTensor)
            assert tensor.equal(back)
            assert back.format == fmt
        else:
            assert isinstance(back, torch.Tensor)
            assert torch.equal(tensor, back)


def test_bytes_load_without_the_file(tmp_path: Path) -> None:
    """Edge case B64: codes and scales are dtypes that every reader of the container knows."""
    for fmt in FORMATS:
        path = tmp_path / f"{fmt.name}.safetensors"
        q = fp4lab.quantize(torch.randn(32, 128), fmt, ragged="pad")
        fp4lab.save({"w": q}, path)
        for tensors in (
            safetensors.torch.load(path.read_bytes()),
            safetensors.torch.load_file(path),
        ):
            assert torch.equal(tensors["w.codes"], q.codes)
            assert torch.equal(tensors["w.scales"], q.scales)


def test_tensors_that_share_memory_are_stored_for_each_name(tmp_path: Path) -> None:
    x = torch.randn(16, 32)
    q = fp4lab.quantize(x, f.NVFP4)
    fp4lab.save({"a": x, "b": x, "c": x[:8], "q": q, "r": q}, tmp_path / "w")
    loaded = fp4lab.load(tmp_path / "w")
    assert torch.equal(loaded["b"], x)  # type: ignore[arg-type]
    assert torch.equal(loaded["c"], x[:8])  # type: ignore[arg-type]
    assert q.equal(loaded["r"])  # type: ignore[arg-type]


def test_a_failed_save_leaves_the_older_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "w"
    q = fp4lab.quantize(torch.randn(16, 32), f.NVFP4)
    fp4lab.save({"w": q}, path)
    for bad in ({"w": q, "w.codes": torch.zeros(1)}, {"w": 3}):
        with pytest.raises(InputError):
            fp4lab.save(bad, path)  # type: ignore[arg-type]
    assert q.equal(fp4lab.load(path)["w"])  # type: ignore[arg-type]
    assert [entry.name for entry in tmp_path.iterdir()] == ["w"]
    with pytest.raises(OSError, match="nowhere"):
        fp4lab.save({"w": q}, tmp_path / "nowhere" / "w")


def test_a_disk_that_is_full_leaves_the_older_file_whole(
    tmp_path: Path, small_disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "w"
    q = fp4lab.quantize(torch.randn(16, 32), f.NVFP4)
    fp4lab.save({"w": q}, path)
    with small_disk(100), pytest.raises(OSError, match="File too large") as caught:
        fp4lab.save({"w": torch.zeros(1000)}, path)
    assert caught.value.filename == str(path)
    assert q.equal(fp4lab.load(path)["w"])  # type: ignore[arg-type]
    assert [entry.name for entry in tmp_path.iterdir()] == ["w"]


def tampered(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> Path:
    safetensors.torch.save_file(tensors, path, metadata=metadata)
    return path


@pytest.fixture
def parts() -> dict[str, torch.Tensor]:
    q = fp4lab.quantize(torch.randn(16, 32), f.NVFP4)
    return {"w.codes": q.codes, "w.scales": q.scales, "w.amax": q.amax}


def described(**changes: Any) -> dict[str, str]:
    entry = {"format": "nvfp4", "shape": [16, 32], "axis": -1} | changes
    return {"convention": "fp4lab-1-amax", "quantized": json.dumps({"w": entry})}


def test_a_missing_scale_is_an_error_that_names_it(
    tmp_path: Path, parts: dict[str, torch.Tensor]
) -> None:
    """Edge case B08: nothing is left uninitialized."""
    for missing in parts:
        rest = {key: value for key, value in parts.items() if key != missing}
        with pytest.raises(InputError, match=f"lacks the tensor '{missing}'"):
            fp4lab.load(tampered(tmp_path / "w", rest, described()))


def test_files_of_another_convention_are_refused(
    tmp_path: Path, parts: dict[str, torch.Tensor]
) -> None:
    """Edge case B18: a scale that multiplies and one that divides look the same."""
    for metadata in ({}, {"format": "pt"}, {"convention": "modelopt"}):
        with pytest.raises(InputError, match="convention"):
            fp4lab.load(tampered(tmp_path / "w", parts, metadata))
    assert isinstance(
        fp4lab.load(tampered(tmp_path / "w", parts, described()))["w"], QuantizedTensor
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "nvpf4"}, "did you mean 'nvfp4'"),
        ({"format": 4}, "w.format=4"),
        ({"format": {"name": "x", "element": "e2m2"}}, "'e2m2'.*did you mean"),
        ({"shape": []}, r"w.shape=\(\) "),
        ({"shape": [16, "32"]}, r"shape=\[16, '32'\]"),
        ({"shape": [32, 32]}, r"w.codes of shape \(16, 16\)"),
        ({"axis": 0}, "w.shape=.* with axis=0"),
        ({"axis": -2}, "w.codes of shape"),
        ({"more": 1}, "'w' does not have the keys"),
        ({"hadamard": "16?"}, r"w\.hadamard='16\?' is no size with signs"),
        ({"hadamard": 16.5}, r"w\.hadamard=16\.5 is no size with signs"),
    ],
)
def test_wrong_metadata_is_named(
    changes: dict[str, Any], words: str, tmp_path: Path, parts: dict[str, torch.Tensor]
) -> None:
    with pytest.raises(InputError, match=words):
        fp4lab.load(tampered(tmp_path / "w", parts, described(**changes)))


@pytest.mark.parametrize(
    ("name", "direction", "value"),
    [("nvfp4_compressed_tensors", "encode", 2688.0), ("nvfp4_modelopt", "decode", 1 / 2688)],
)
def test_the_direction_of_the_tensor_scale_is_in_the_file(
    name: str, direction: str, value: float, tmp_path: Path
) -> None:
    """Edge case B18: encode and decode scales have other names, and the wrong one is refused."""
    fmt = f.get(name)
    assert fmt.direction.name.lower() == direction
    q = fp4lab.quantize(torch.ones(16, 32), fmt)
    assert torch.equal(q.tensor_scale, torch.tensor([value]))
    path = tmp_path / "w"
    fp4lab.save({"w": q}, path)
    assert q.equal(fp4lab.load(path)["w"])  # type: ignore[arg-type]
    tensors = safetensors.torch.load_file(path)
    assert set(tensors) == {"w.codes", "w.scales", f"w.{direction}_scale"}
    with safetensors.safe_open(path, framework="pt") as file:
        entry = json.loads(file.metadata()["quantized"])["w"]
    assert entry["direction"] == direction
    for said, words in (
        ("decode" if direction == "encode" else "encode", "stores its .* scale; the file"),
        ("amax", f"w.direction='amax': the format '{name}' stores its {direction} scale"),
        ("dcode", "w.direction='dcode' is not known; did you mean 'decode'"),
        (1, "w.direction=1 is not known"),
    ):
        changed = described(**entry | {"direction": said})
        with pytest.raises(InputError, match=words):
            fp4lab.load(tampered(tmp_path / "changed", tensors, changed))
    del entry["direction"]
    with pytest.raises(InputError, match=r"w\.direction='amax'"):
        fp4lab.load(tampered(tmp_path / "changed", tensors, described(**entry)))
    renamed = tensors | {"w.amax": tensors[f"w.{direction}_scale"]}
    del renamed[f"w.{direction}_scale"]
    said_right = described(**entry | {"direction": direction})
    with pytest.raises(InputError, match=f"lacks the tensor 'w.{direction}_scale'"):
        fp4lab.load(tampered(tmp_path / "changed", renamed, said_right))


def test_an_amax_is_not_made_up_from_a_scale() -> None:
    q = fp4lab.quantize(torch.ones(1, 16), f.NVFP4_COMPRESSED_TENSORS)
    with pytest.raises(InputError, match=r"stores its encode scale, .*use q\.tensor_scale"):
        _ = q.amax
    assert "encode scale 2688" in repr(q)
    assert torch.equal(fp4lab.quantize(torch.ones(1, 16), f.NVFP4).amax, torch.ones(1))


def test_wrong_parts_are_named(tmp_path: Path, parts: dict[str, torch.Tensor]) -> None:
    for key, value in {
        "w.codes": torch.zeros(16, 16),
        "w.scales": torch.zeros(16, 3, dtype=torch.uint8),
        "w.amax": torch.zeros(0),
    }.items():
        with pytest.raises(InputError, match=f"{key} of shape"):
            fp4lab.load(tampered(tmp_path / "w", parts | {key: value}, described()))


def test_unreadable_files_are_named(tmp_path: Path, parts: dict[str, torch.Tensor]) -> None:
    path = tampered(tmp_path / "w", parts, described())
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", b"not a file at all"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="not a whole safetensors file"):
            fp4lab.load(path)
    for text in ("{", "[]", "3"):
        metadata = described() | {"quantized": text}
        with pytest.raises(InputError, match="quantized"):
            fp4lab.load(tampered(path, parts, metadata))
    with pytest.raises(FileNotFoundError, match="missing"):
        fp4lab.load(tmp_path / "missing")


def test_loading_never_unpickles(tmp_path: Path) -> None:
    path = tmp_path / "w"
    torch.save({"w": torch.zeros(1)}, path)
    with pytest.raises(InputError, match="not a whole safetensors file"):
        fp4lab.load(path)


def test_pending_conjugation_and_negation_are_saved(tmp_path: Path) -> None:
    c = torch.tensor([1 + 2j, 3 - 4j]).conj()
    fp4lab.save({"c": c, "imag": c.imag}, tmp_path / "c.safetensors")
    loaded = fp4lab.load(tmp_path / "c.safetensors")
    assert torch.equal(loaded["c"], c.resolve_conj())  # type: ignore[arg-type]
    assert torch.equal(loaded["imag"], torch.tensor([-2.0, 4.0]))  # type: ignore[arg-type]


def test_what_a_file_cannot_hold_is_refused_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "good"
    fp4lab.save({"x": torch.zeros(2)}, path)
    before = path.read_bytes()
    for name, value in (
        ("__metadata__", torch.zeros(2)),
        ("sparse", torch.zeros(2).to_sparse()),
        ("meta", torch.zeros(2, device="meta")),
    ):
        with pytest.raises(InputError, match=name):
            fp4lab.save({name: value}, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("dtype", [torch.float4_e2m1fn_x2, torch.float8_e8m0fnu, torch.int32])
def test_results_have_a_dtype_that_holds_them(dtype: torch.dtype) -> None:
    q = fp4lab.quantize(torch.randn(2, 16), f.NVFP4)
    with pytest.raises(InputError, match=r"cannot hold the values; use torch\.float32"):
        q.dequantize(dtype)


def test_the_mode_is_the_usual_one_or_that_of_what_is_replaced(tmp_path: Path) -> None:
    path, before = tmp_path / "w.safetensors", os.umask(0o027)
    try:
        fp4lab.save({"a": torch.ones(2)}, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o664)
        fp4lab.save({"a": torch.zeros(2)}, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o664
    finally:
        os.umask(before)
