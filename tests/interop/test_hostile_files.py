"""Pipes, configurations, sizes: what would hang, end in a traceback, or take all memory."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import fp4lab
from fp4lab import InputError, interop
from fp4lab.interop import gguf_files
from tests.interop.models import folder
from tests.interop.raw_files import gguf_bytes, one, safetensors_bytes, tensor


def test_pipes_and_devices_are_refused_before_they_are_opened(tmp_path: Path) -> None:
    """A pipe that is opened waits for a writer that never comes."""
    whole = folder(tmp_path / "whole")
    files = ("model.safetensors", "model.safetensors.index.json", "config.json")
    for name in files:
        model = tmp_path / f"with {name}"
        shutil.copytree(whole, model)
        (model / name).unlink(missing_ok=True)
        os.mkfifo(model / name)
        for call in (
            lambda model=model: interop.read(model),
            lambda model=model: interop.inspect(model, ["nvfp4"]),
            lambda model=model: interop.quantize(
                model, tmp_path / "out", format="nvfp4", layout="modelopt"
            ),
        ):
            with pytest.raises(InputError, match=f"{name} is a pipe or device; give a file"):
                call()
    quantized = tmp_path / "quantized"
    interop.quantize(whole, quantized, format="nvfp4", layout="modelopt")
    part = quantized / "model.safetensors"
    index = {"weight_map": dict.fromkeys(interop.read(quantized).source.entries, part.name)}
    (quantized / "model.safetensors.index.json").write_text(json.dumps(index))
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(InputError, match=r"model.safetensors is a pipe or device|is missing"):
        interop.read(quantized)
    for path in (part, tmp_path / "pipe.gguf", Path("/dev/zero")):
        if not path.exists():
            os.mkfifo(path)
        for read in (interop.read, interop.layout_of, fp4lab.load, gguf_files.header):
            with pytest.raises(InputError, match="is a pipe or device"):
                read(path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": 5}, r"has architectures='5', not a list of names"),
        ({"architectures": "LlamaForCausalLM"}, "not a list of names"),
        ({"architectures": [5]}, "not a list of names"),
        ({"architectures": {"LlamaForCausalLM": 1}}, "not a list of names"),
        ({"model_type": ["gpt2"]}, "has model_type=.*, not a name"),
        ({"model_type": {}}, "not a name"),
        ({"model_type": 3}, "not a name"),
        ({"quantization_config": [1]}, "has quantization_config=.*, not a table"),
    ],
)
def test_a_configuration_of_the_wrong_kind_is_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    source = folder(tmp_path / "in")
    (source / "config.json").write_text(json.dumps(config))
    for path in (source, source / "model.safetensors"):
        with pytest.raises(InputError, match=message) as raised:
            interop.quantize(path, tmp_path / "out", format="nvfp4", layout="compressed-tensors")
        assert str(source / "config.json") in str(raised.value)
    q = fp4lab.quantize(torch.ones(16, 64), "nvfp4")
    with pytest.raises(InputError, match=message):
        interop.write({"a.weight": q}, tmp_path / "out", layout="modelopt", config=config)
    assert {path.name for path in tmp_path.iterdir()} == {"in"}


TERABYTE = 1 << 40


def sparse(path: Path, head: bytes, nbytes: int) -> Path:
    """A file of so many bytes that takes none."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + nbytes)
    return path


@pytest.mark.parametrize("kind", ["safetensors", "F32", "Q4_0"])
def test_a_tensor_that_no_memory_holds_is_told(tmp_path: Path, kind: str) -> None:
    columns, rows = 1 << 20, 1 << 18
    if kind == "safetensors":
        entry = one(shape=[rows, columns], data_offsets=[0, TERABYTE])["a"]
        path, head = tmp_path / "in.safetensors", safetensors_bytes({"a.weight": entry})
        nbytes = TERABYTE
    else:
        number, nbytes = (0, TERABYTE) if kind == "F32" else (2, TERABYTE // 4 // 32 * 18)
        told = tensor(b"a.weight", sizes=(columns, rows), kind=number)
        path, head = tmp_path / "in.gguf", gguf_bytes(num_tensors=1, tensors=told)
        pytest.importorskip("gguf", reason="decodes ggml's blocks")
    sparse(path, head, nbytes)
    calls: list[Callable[[], object]] = [
        lambda: interop.inspect(path, ["mxfp4"]),
        lambda: interop.quantize(path, tmp_path / "out", format="mxfp4", layout="fp4lab"),
    ]
    if kind == "safetensors":
        calls.append(lambda: fp4lab.load(path))
    for call in calls:
        with mapping_at_most(1 << 36), pytest.raises(InputError, match="more memory than there is"):
            call()
    assert {p.name for p in tmp_path.iterdir()} == {path.name}


@contextmanager
def mapping_at_most(nbytes: int) -> Iterator[None]:
    """A machine that promises any memory would go on until it has none."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("size", [1 << 63, 1 << 64, 1 << 49, -1, 1.0, "1"])
@pytest.mark.parametrize("shape", [[16, None], [None, 0], [None, None]])
def test_sizes_that_no_tensor_has_are_refused(
    tmp_path: Path, size: object, shape: list[int | None]
) -> None:
    path = tmp_path / "w.safetensors"
    fp4lab.save({"a": fp4lab.quantize(torch.ones(16, 32), "nvfp4")}, path)
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata()
        parts = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    described = json.loads(metadata["quantized"])
    described["a"]["shape"] = [size if one is None else one for one in shape]
    save_file(parts, path, metadata=metadata | {"quantized": json.dumps(described)})
    for call in (fp4lab.load, interop.read, interop.inspect):
        with pytest.raises(InputError, match=r"shape=.* of 'a' is"):
            call(path)
