"""What `write` and `read` are given that they cannot use is one InputError, and nothing is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fp4lab
from fp4lab import InputError, formats, interop
from fp4lab.interop.layouts import LayoutName
from tests.interop.models import folder

EACH: list[LayoutName] = ["compressed-tensors", "modelopt", "gguf", "fp4lab"]
Q = fp4lab.quantize(torch.ones(16, 64), formats.NVFP4)
ONES = torch.ones(2)


@pytest.mark.parametrize("layout", EACH)
@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"__metadata__": ONES}, "'__metadata__', which safetensors keeps"),
        ({"": ONES}, "name '', which is empty"),
        ({"../../e": ONES}, "the form of a path"),
        ({"/e": ONES}, "the form of a path"),
        ({"n\nl": ONES}, "control characters"),
        ({"\ud800": ONES}, "is no UTF-8"),
        ({3: ONES}, "the name 3, which is no text"),
        ({"a": ONES.to_sparse()}, "is sparse or on the meta device"),
        ({"a": ONES.to("meta")}, "is sparse or on the meta device"),
        ({"a": 3}, "is a int; give QuantizedTensor and Tensor"),
        ({"a": np.ones(2)}, "is a ndarray; give"),
        ([ONES], "is not a Mapping"),
    ],
)
def test_tensors_that_no_file_holds(
    tmp_path: Path, layout: LayoutName, tensors: Any, message: str
) -> None:
    out = tmp_path / ("out.gguf" if layout == "gguf" else "out")
    if isinstance(tensors, dict):
        tensors = {"a.weight": Q} | tensors
    with pytest.raises(InputError, match=message) as raised:
        interop.write(tensors, out, layout=layout)
    assert "\n" not in str(raised.value)
    if not any(word in message for word in ("empty", "path", "control")):
        with pytest.raises(InputError, match=message):
            fp4lab.save(tensors, tmp_path / "w.safetensors")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "../e", "n\nl", "\ud800", "__metadata__"])
def test_names_of_quantized_tensors(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="has the name"):
        interop.write({name: Q}, tmp_path / "out", layout="fp4lab")
    assert not any(tmp_path.iterdir())


def circle() -> dict[str, Any]:
    table: dict[str, Any] = {}
    table["again"] = table
    return table


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([1], "is not a Mapping"),
        ("{}", "is not a Mapping"),
        ({"a": {1}}, "cannot be stored as JSON"),
        ({(1,): 1}, "cannot be stored as JSON"),
        ({"a": torch.float32}, "cannot be stored as JSON"),
        (circle(), "cannot be stored as JSON"),
    ],
)
def test_configurations_that_are_none(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        interop.write({"a.weight": Q}, tmp_path / "out", layout="modelopt", config=config)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "path=None is no path"),
        (5, "path=5 is no path"),
        (b"x", "path=b'x' is no path"),
        ("", "path='' is empty"),
        ("a\0b", "has a zero byte"),
    ],
)
def test_paths_that_are_none(tmp_path: Path, path: Any, message: str) -> None:
    for call in (
        interop.read,
        interop.layout_of,
        fp4lab.load,
        lambda path: interop.inspect(path, ["nvfp4"]),
        lambda path: interop.write({"a.weight": Q}, path, layout="modelopt"),
        lambda path: fp4lab.save({"a": ONES}, path),
    ):
        with pytest.raises(InputError, match=message):
            call(path)
    source = folder(tmp_path / "in")
    for words, argument in (((path, tmp_path / "out"), "source"), ((source, path), "out")):
        with pytest.raises(InputError, match=message.replace("path=", f"{argument}=")):
            interop.quantize(*words, format="nvfp4", layout="modelopt")


def test_a_folder_is_no_file_of_tensors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; give a file"):
        fp4lab.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="none"):
        fp4lab.load(tmp_path / "none")


def test_what_is_beyond_float32_is_called_so(tmp_path: Path) -> None:
    for value, message in ((1e300, "holds numbers beyond float32"), (torch.inf, "infinity")):
        path = tmp_path / "w.safetensors"
        save_file({"a.weight": torch.full((16, 64), value, dtype=torch.float64)}, path)
        with pytest.raises(InputError, match=message):
            interop.quantize(path, tmp_path / "out", format="nvfp4", layout="modelopt")
