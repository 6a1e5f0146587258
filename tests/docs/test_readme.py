"""What README.md shows can be typed as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fp4lab import recipes
from fp4lab.formats import table

TEXT = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_examples_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    # what an example registers is gone after it
    monkeypatch.setattr(table, "_FORMATS", dict(table._FORMATS))
    examples = [block for block in blocks("python") if "build_model" not in block]
    assert len(examples) == 3
    names: dict[str, object] = {}
    for example in examples:
        exec(example, names)
    printed = capsys.readouterr().out
    assert "QuantizedTensor(nvfp4 64x128, 4.50 bits a value" in printed
    assert "2 converted" in printed
    assert recipes.get("nvfp4_1x32").linear.fprop.a.format == names["mine"]


def test_the_recipe_file_is_one() -> None:
    (text,) = blocks("toml")
    recipe = recipes.Recipe.from_toml(text)
    assert recipe.linear == recipes.get("nvfp4-rht").linear
    assert len(recipe.rules) == 2
    assert recipe.resolve("blocks.1.mlp.up", 1, 2).linear == recipes.get("mxfp8").linear


def test_every_recipe_named_exists() -> None:
    named = {"nvfp4_last4", "nvfp4-rht", "nvfp4_base+sr.dgrad", "mxfp6_e2m3"}
    assert all(f"`{name}`" in TEXT for name in named)
    for name in named:
        recipes.get(name)
