"""Damaged and hostile files end in one line, before anything is allocated for them."""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import fp4lab
from fp4lab import InputError, formats, interop
from fp4lab.interop import entries, gguf_header, safetensors_files
from tests.interop.models import folder, state


def safetensors_bytes(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def one(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


def twice(name: str) -> bytes:
    entry = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
    return f'{{"{name}":{entry},"{name}":{entry}}}'.encode()


EIGHT = b"\0" * 8
SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "has 0 bytes, fewer than its header"),
    "short": (b"\x08\0", "has 2 bytes"),
    "length beyond the file": (safetensors_bytes(one(), EIGHT)[:20], "was cut short"),
    "huge length": (b"\xff" * 8 + EIGHT, "fewer than its header announces"),
    "negative length": ((-1).to_bytes(8, "little", signed=True), "fewer than its header announces"),
    "no JSON": (safetensors_bytes(b"{"), "is not a whole safetensors file"),
    "nested": (safetensors_bytes(b"[" * 100_000), "is not a whole safetensors file"),
    "list": (safetensors_bytes([1]), "is not a whole safetensors file"),
    "cut data": (safetensors_bytes(one(), EIGHT[:4]), "is not a whole safetensors file"),
    "more data": (safetensors_bytes(one(), EIGHT * 2), "is not a whole safetensors file"),
    "unknown dtype": (safetensors_bytes(one(dtype="F7"), EIGHT), "is not a whole safetensors file"),
    "negative size": (safetensors_bytes(one(shape=[-2]), EIGHT), "is not a whole safetensors file"),
    "overflowing size": (
        safetensors_bytes(one(shape=[2**62, 2**62]), EIGHT),
        "is not a whole safetensors file",
    ),
    "sizes beyond any tensor's": (
        safetensors_bytes(one(shape=[0, 2**60, 2**60], data_offsets=[0, 0])),
        "has sizes beyond those of any tensor",
    ),
    "backward": (safetensors_bytes(one(data_offsets=[8, 0]), EIGHT), "is not a whole safetensors"),
    "overlap": (
        safetensors_bytes(one() | {"b": one()["a"] | {"data_offsets": [4, 12]}}, EIGHT + EIGHT[:4]),
        "is not a whole safetensors file",
    ),
    "hole": (safetensors_bytes(one(data_offsets=[8, 16]), EIGHT * 2), "is not a whole safetensors"),
    "twice": (safetensors_bytes(twice("a"), EIGHT), "it has 'a' twice"),
    "control characters": (
        safetensors_bytes({"a\x1b[2J": one()["a"]}, EIGHT),
        "control characters",
    ),
    "line break": (safetensors_bytes({"a\nb": one()["a"]}, EIGHT), "control characters"),
    "path": (safetensors_bytes({"../../a": one()["a"]}, EIGHT), "the form of a path"),
    "absolute path": (safetensors_bytes({"/etc/a": one()["a"]}, EIGHT), "the form of a path"),
    "no name": (safetensors_bytes({"": one()["a"]}, EIGHT), "is empty"),
    "dtype of less than a byte": (
        safetensors_bytes(one(dtype="F4", shape=[16]), EIGHT),
        "has the dtype F4, which is not read here",
    ),
    "pickle": (b"\x80\x02}q\x00.", "has 6 bytes, fewer than its header announces"),
}


def test_a_header_longer_than_any_models_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with path.open("wb") as file:
        file.write((safetensors_files.LONGEST_HEADER + 1).to_bytes(8, "little"))
        file.truncate(safetensors_files.LONGEST_HEADER + 100)
    with pytest.raises(InputError, match="no model needs more, so do not trust the file"):
        interop.read(path)


def string(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def gguf_bytes(
    *,
    keys: bytes = b"",
    num_keys: int = 0,
    tensors: bytes = b"",
    num_tensors: int = 0,
    version: int = 3,
    data: bytes = b"",
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + keys + tensors
    return head + bytes(-len(head) % 32) + data


def tensor(
    name: bytes = b"a",
    sizes: tuple[int, ...] = (4,),
    kind: int = 0,
    offset: int = 0,
    num_sizes: int | None = None,
) -> bytes:
    head = string(name) + struct.pack("<I", len(sizes) if num_sizes is None else num_sizes)
    return head + struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", kind, offset)


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, value: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + value


BILLIONS = 1 << 62
SIXTEEN = b"\0" * 16
GGUF: dict[str, tuple[bytes, str]] = {
    "only the magic": (b"GGUF", "ends within its header"),
    "version 1": (gguf_bytes(version=1), "has GGUF version 1"),
    "big endian": (gguf_bytes(version=3 << 24), "has GGUF version 50331648"),
    "many tensors": (gguf_bytes(num_tensors=BILLIONS), "announces 4611686018427387904 tensors"),
    "many keys": (gguf_bytes(num_keys=BILLIONS), "4611686018427387904 pieces of metadata"),
    "more tensors than there are": (gguf_bytes(num_tensors=1000), "ends within its header"),
    "long name": (
        gguf_bytes(num_tensors=1, tensors=BILLIONS.to_bytes(8, "little")),
        "ends within its header",
    ),
    "long text": (
        gguf_bytes(num_keys=1, keys=key(b"k", 8, BILLIONS.to_bytes(8, "little"))),
        "ends within its header",
    ),
    "long array": (
        gguf_bytes(num_keys=1, keys=key(b"k", 9, array(4, BILLIONS))),
        "ends within its header",
    ),
    "long array of texts": (
        gguf_bytes(num_keys=1, keys=key(b"k", 9, array(8, BILLIONS))),
        "ends within its header",
    ),
    "nested arrays": (
        gguf_bytes(num_keys=1, keys=key(b"k", 9, array(9, 1) * 50 + array(4, 0))),
        "metadata of the unknown type",
    ),
    "empty arrays of arrays": (
        gguf_bytes(num_keys=1, keys=key(b"k", 9, array(9, BILLIONS, array(4, 0) * 9))),
        "ends within its header",
    ),
    "unknown type": (
        gguf_bytes(num_keys=1, keys=key(b"k", 99, b"")),
        "metadata of the unknown type",
    ),
    "key twice": (gguf_bytes(num_keys=2, keys=key(b"k", 4, b"\0" * 4) * 2), "has 'k' twice"),
    "alignment": (
        gguf_bytes(num_keys=1, keys=key(b"general.alignment", 4, struct.pack("<I", 24))),
        "has the alignment 24",
    ),
    "alignment of 0": (
        gguf_bytes(num_keys=1, keys=key(b"general.alignment", 4, struct.pack("<I", 0))),
        "has the alignment 0",
    ),
    "tensor twice": (
        gguf_bytes(num_tensors=2, tensors=tensor() * 2, data=SIXTEEN * 2),
        "has the tensor 'a' twice",
    ),
    "beyond the end": (gguf_bytes(num_tensors=1, tensors=tensor()), "ends before its tensor 'a'"),
    "offset beyond": (
        gguf_bytes(num_tensors=1, tensors=tensor(offset=1 << 63), data=SIXTEEN),
        "ends before its tensor 'a'",
    ),
    "overflowing sizes": (
        gguf_bytes(num_tensors=1, tensors=tensor(sizes=(1 << 32, 1 << 32)), data=SIXTEEN),
        "has sizes beyond those of any tensor",
    ),
    "many dimensions": (
        gguf_bytes(num_tensors=1, tensors=tensor(num_sizes=1 << 30)),
        "of 1073741824 dimensions",
    ),
    "unaligned": (
        gguf_bytes(num_tensors=1, tensors=tensor(offset=4), data=SIXTEEN * 2),
        "where no tensor can begin",
    ),
    "overlap": (
        gguf_bytes(
            num_tensors=2,
            tensors=tensor(sizes=(16,)) + tensor(b"b", offset=32),
            data=SIXTEEN * 4,
        ),
        "where no tensor can begin",
    ),
    "unknown tensor type": (
        gguf_bytes(num_tensors=1, tensors=tensor(kind=77), data=SIXTEEN),
        "of ggml's type 77",
    ),
    "broken block": (
        gguf_bytes(num_tensors=1, tensors=tensor(sizes=(63,), kind=40), data=SIXTEEN * 9),
        "NVFP4 needs blocks of 64",
    ),
    "control characters": (
        gguf_bytes(num_tensors=1, tensors=tensor(b"a\x1b[2J"), data=SIXTEEN),
        "control characters",
    ),
    "path": (gguf_bytes(num_tensors=1, tensors=tensor(b"../a"), data=SIXTEEN), "form of a path"),
    "no UTF-8": (gguf_bytes(num_tensors=1, tensors=tensor(b"\xff"), data=SIXTEEN), "is no UTF-8"),
    "split": (
        gguf_bytes(num_keys=1, keys=key(b"split.count", 2, b"\3\0")),
        "one part of a split GGUF",
    ),
}


@pytest.mark.parametrize(
    ("suffix", "case"),
    [("safetensors", case) for case in SAFETENSORS] + [("gguf", case) for case in GGUF],
)
def test_files_that_are_not_to_be_read(tmp_path: Path, suffix: str, case: str) -> None:
    data, message = (SAFETENSORS if suffix == "safetensors" else GGUF)[case]
    path = tmp_path / f"w.{suffix}"
    path.write_bytes(data)
    with pytest.raises(InputError) as raised:
        interop.read(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_a_file_that_ends_while_a_tensor_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.safetensors"
    save_file({"a": torch.ones(1 << 16)}, path)
    monkeypatch.setattr(entries, "CHUNK", 64)
    chunks = interop.read(path).source.entries["a"].chunks()
    next(chunks)
    os.truncate(path, 1 << 16)
    with pytest.raises(InputError, match="ended within 'a': it was cut short while"):
        list(chunks)


def test_a_small_gguf_that_is_to_be_read(tmp_path: Path) -> None:
    """The cases above are damaged in one place; this is what they come from."""
    path = tmp_path / "w.gguf"
    path.write_bytes(gguf_bytes(num_tensors=1, tensors=tensor(), data=SIXTEEN))
    read = interop.read(path)
    assert torch.equal(read["a"], torch.zeros(4))  # type: ignore[arg-type]
    assert gguf_header.header(path).keys == {}


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model.pth", "model.ckpt", "weights"])
@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_weights_are_never_read(tmp_path: Path, name: str, zipped: bool) -> None:
    trap, path = tmp_path / "ran", tmp_path / name

    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[Path]]:
            return Path.touch, (trap,)

    torch.save({"w": Trap()}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(
        InputError, match="pickled weights are not read, for reading them runs code"
    ):
        interop.read(path)
    folder = tmp_path / "folder"
    folder.mkdir()
    path.rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"has pytorch_model.bin and no safetensors; pickled"):
        interop.read(folder)
    assert not trap.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert trap.exists()


def test_paths_that_hold_no_weights(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "a.gguf").touch()
    (tmp_path / "a.gguf").write_bytes(b"no")
    for path, message in (
        ("none", "is neither a file nor a folder"),
        ("empty", "has no safetensors files; give a folder of a model"),
        ("gguf", "give the file a.gguf itself"),
        ("a.gguf", "does not begin with GGUF"),
    ):
        with pytest.raises(InputError, match=message):
            interop.read(tmp_path / path)
    many = folder(tmp_path / "many")
    for name in ("a", "b"):
        shutil.copyfile(many / "model.safetensors", many / f"{name}.safetensors")
    (many / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has several files \(a.safetensors, b.safetensors\)"):
        interop.read(many)


def test_an_index_is_believed_only_where_it_is_right(tmp_path: Path) -> None:
    source = folder(tmp_path / "model")
    index = source / "model.safetensors.index.json"
    good = dict.fromkeys(state(), "model.safetensors")
    for table, message in (
        ({"weight_map": good | {"x": "../other.safetensors"}}, "no safetensors file of its folder"),
        ({"weight_map": good | {"x": "pytorch_model.bin"}}, "no safetensors file of its folder"),
        ({"weight_map": good | {"x": "gone.safetensors"}}, "which is missing"),
        ({"weight_map": good | {"x": "model.safetensors"}}, "and it is not there"),
        ({"weight_map": {"x": 3}}, "no table 'weight_map'"),
        ({}, "no table 'weight_map'"),
        ([], "holds no table"),
    ):
        index.write_text(json.dumps(table))
        with pytest.raises(InputError, match=message):
            interop.read(source)
    many = source / "other.safetensors"
    shutil.copyfile(source / "model.safetensors", many)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(state(), many.name)}))
    with pytest.raises(InputError, match=r"has model.safetensors, and .* names other files"):
        interop.read(source)
    few = dict(list(good.items())[1:])
    index.write_text(json.dumps({"weight_map": few}))
    with pytest.raises(InputError, match=r"holds '.*', which model.safetensors.index.json does"):
        interop.read(source)
    index.write_text("[" * 100_000)
    with pytest.raises(InputError, match="is no JSON"):
        interop.read(source)


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "in.safetensors"
    save_file({"a.weight": torch.ones(64, 64), "b": torch.ones(64)}, path)
    read = interop.read(path)
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(InputError, match="has changed since it was opened"):
        interop.write(read, tmp_path / "out", layout="fp4lab")
    with pytest.raises(InputError, match="has changed since it was opened"):
        read["a.weight"]
    assert {p.name for p in tmp_path.iterdir()} == {"in.safetensors"}


def test_damaged_descriptions_of_fp4labs_layout_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    for metadata, message in (
        ({"convention": "fp4lab-0"}, "has the convention 'fp4lab-0', not"),
        ({"convention": "fp4lab-1-amax"}, "has no readable 'quantized'"),
        (
            {"convention": "fp4lab-1-amax", "quantized": "[" * 100_000},
            "has no readable 'quantized'",
        ),
        ({"convention": "fp4lab-1-amax", "quantized": '{"a": 1}'}, "does not have the keys"),
        (
            {
                "convention": "fp4lab-1-amax",
                "quantized": json.dumps({"a": {"format": "nvfp4", "shape": [16, 32], "axis": -1}}),
            },
            "lacks the tensor 'a.codes'",
        ),
    ):
        save_file({"b": torch.ones(1)}, path, metadata=metadata)
        with pytest.raises(InputError, match=message):
            interop.read(path)


def test_a_missing_gguf_package_is_named_with_the_command_that_adds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = gguf_bytes(num_tensors=1, tensors=tensor(sizes=(32,), kind=8), data=b"\0" * 34)
    (tmp_path / "w.gguf").write_bytes(data)
    monkeypatch.setitem(sys.modules, "gguf.quants", None)
    with pytest.raises(
        InputError, match="needs the package gguf; add it: python -m pip install gguf"
    ):
        interop.read(tmp_path / "w.gguf")["a"]


def test_what_a_tool_wrote_elsewhere_is_named(tmp_path: Path) -> None:
    """FP8 with one scale, integers: layouts that are not read say so instead of losing a scale."""
    path = tmp_path / "w.safetensors"
    fp8 = torch.ones(16, 32).to(torch.float8_e4m3fn)
    save_file({"a.weight": fp8, "a.weight_scale": torch.ones(1)}, path)
    with pytest.raises(InputError, match="that is no NVFP4, MXFP4 or MXFP8 of compressed-tensors"):
        interop.inspect(path, [formats.NVFP4])


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
        for read in (interop.read, interop.layout_of, fp4lab.load, gguf_header.header):
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
