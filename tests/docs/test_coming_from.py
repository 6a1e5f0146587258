"""The examples of docs/coming-from.md run, and give the numbers of the tool beside them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fp4lab
from fp4lab import recipes
from fp4lab.bench import peers

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "coming-from.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
TOOLS = ["torchao", "Transformer Engine", "ModelOpt", "microxcaling"]
TOOLS += ["compressed-tensors and llm-compressor"]
NEEDS_MORE = ("# needs a GPU", "# not run here")


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def ours(block: str) -> bool:
    return "fp4lab" in block


def beginning() -> dict[str, Any]:
    """The names that every example starts with: data, a model, and what fp4lab makes of them."""
    names: dict[str, Any] = {}
    data, here = blocks(TEXT)[:2]
    exec(data, names)
    return {**names, "here": here}


def run(block: str, names: dict[str, Any]) -> dict[str, Any]:
    exec(block, names)
    return names


def test_the_page_has_a_section_for_each_tool() -> None:
    assert [name for name in SECTIONS if name in TOOLS] == TOOLS
    for tool in TOOLS:
        of_tool = blocks(SECTIONS[tool])
        assert any(map(ours, of_tool))
        assert not all(map(ours, of_tool))


@pytest.mark.parametrize("tool", TOOLS)
def test_our_examples_run(tool: str) -> None:
    names = beginning()
    run(names["here"], names)
    trained = False
    for block in filter(ours, blocks(SECTIONS[tool])):
        names |= beginning()
        run(block, names)
        trained |= "convert" in block
        if "convert" in block:
            names["model"](names["x"]).square().mean().backward()
            assert all(
                isinstance(layer, fp4lab.nn.Linear)
                for layer in names["model"]
                if hasattr(layer, "weight")
            )
    assert trained or tool.startswith("compressed-tensors")


def test_recipes_of_the_table_and_the_text_exist() -> None:
    named = re.findall(r"\| `([a-z0-9_-]+)` \|$", SECTIONS["Transformer Engine"], re.MULTILINE)
    assert len(named) == 7
    for name in named:
        recipes.get(name)
    forward = recipes.get("nvfp4_base-quantization.dgrad-quantization.wgrad").linear
    assert forward.fprop == recipes.get("nvfp4_base").linear.fprop
    assert forward.dgrad == recipes.get("bf16").linear.dgrad
    assert forward.wgrad == recipes.get("bf16").linear.wgrad


def theirs(tool: str, module: str) -> dict[str, Any]:
    """What the tool's first example gives; the test is skipped where the tool is missing."""
    with peers.on_their_own():
        pytest.importorskip(module, reason=f"needs {tool}")
        first = next(block for block in blocks(SECTIONS[tool]) if not ours(block))
        assert not first.startswith(NEEDS_MORE)
        return run(first, beginning())


def same(q: fp4lab.QuantizedTensor, codes: Tensor, scales: Tensor, values: Tensor) -> bool:
    """To the last bit."""
    found = (q.codes, q.scales, q.dequantize())
    stored = (codes.view(torch.uint8), scales.to(torch.float8_e4m3fn).view(torch.uint8), values)
    return all(map(torch.equal, found, stored))


def test_torchao() -> None:
    names = theirs("torchao", "torchao.prototype.mx_formats.nvfp4_tensor")
    q = fp4lab.quantize(names["x"], "nvfp4_torchao")
    theirs_ = names["theirs"]
    assert same(q, theirs_.qdata, theirs_.scale, names["their_values"])
    assert torch.equal(q.tensor_scale[0], theirs_.per_tensor_scale)
    mx = fp4lab.fake_quantize(names["x"], "mxfp4_floor")
    assert torch.equal(names["their_mx_values"], mx)


def test_modelopt() -> None:
    names = theirs("ModelOpt", "modelopt.torch.quantization.qtensor.nvfp4_tensor")
    q = fp4lab.quantize(names["x"], "nvfp4_modelopt")
    assert same(q, names["theirs"]._quantized_data, names["scale"], names["their_values"])
    assert torch.equal(q.tensor_scale[0], names["double_scale"])


def test_microxcaling() -> None:
    names = theirs("microxcaling", "mx.mx_ops")
    mx = fp4lab.fake_quantize(names["x"], "mxfp4_floor")
    assert torch.equal(names["their_values"], mx)


def test_compressed_tensors() -> None:
    tool = "compressed-tensors and llm-compressor"
    names = theirs(tool, "compressed_tensors.compressors.nvfp4")
    q = fp4lab.quantize(names["x"], "nvfp4_compressed_tensors")
    assert same(q, names["codes"], names["scale"], names["their_values"])
    assert torch.equal(q.tensor_scale, names["global_scale"])
