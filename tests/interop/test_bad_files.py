"""Damaged and hostile files end in one line, before anything is allocated for them."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fp4lab import InputError, formats, interop
from fp4lab.interop import entries, gguf_files, safetensors_files
from tests.interop.models import folder, state
from tests.interop.raw_files import (
    array,
    gguf_bytes,
    key,
    one,
    safetensors_bytes,
    tensor,
    twice,
)

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
    assert gguf_files.header(path).keys == {}


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
    with pytest.raises(InputError, match="needs the package gguf; add it: pip install gguf"):
        interop.read(tmp_path / "w.gguf")["a"]


def test_what_a_tool_wrote_elsewhere_is_named(tmp_path: Path) -> None:
    """FP8 with one scale, integers: layouts that are not read say so instead of losing a scale."""
    path = tmp_path / "w.safetensors"
    fp8 = torch.ones(16, 32).to(torch.float8_e4m3fn)
    save_file({"a.weight": fp8, "a.weight_scale": torch.ones(1)}, path)
    with pytest.raises(InputError, match="that is no NVFP4, MXFP4 or MXFP8 of compressed-tensors"):
        interop.inspect(path, [formats.NVFP4])
