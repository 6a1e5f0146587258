"""What README.md and docs/guide.md show can be typed as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fp4lab import cli, recipes
from fp4lab.formats import table

ROOT = Path(__file__).resolve().parents[2]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/guide.md")}
GUIDE = PAGES["docs/guide.md"]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], flags=re.DOTALL)


@pytest.mark.parametrize(
    ("page", "count", "said"),
    [
        ("README.md", 1, ["QuantizedTensor(nvfp4 64x128, 4.50 bits a value", "2 converted"]),
        (
            "docs/guide.md",
            5,
            ["modelopt QuantizedTensor(nvfp4_modelopt 256x128, 4.50 bits a value"],
        ),
    ],
)
def test_the_examples_run(
    page: str,
    count: int,
    said: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    # what an example registers is gone after it
    monkeypatch.setattr(table, "_FORMATS", dict(table._FORMATS))
    examples = [block for block in blocks(page, "python") if "build_model" not in block]
    assert len(examples) == count
    names: dict[str, object] = {}
    for example in examples:
        exec(example, names)
    printed = capsys.readouterr().out
    assert all(text in printed for text in said)
    if "mine" in names:
        assert recipes.get("nvfp4_1x32").linear.fprop.a.format == names["mine"]


def test_the_recipe_files_are_some() -> None:
    mine, wide = blocks("docs/guide.md", "toml")
    recipe = recipes.Recipe.from_toml(mine)
    assert recipe.linear == recipes.get("nvfp4-rht").linear
    assert len(recipe.rules) == 2
    assert recipe.resolve("blocks.1.mlp.up", 1, 2).linear == recipes.get("mxfp8").linear
    fmt = recipes.Recipe.from_toml(wide).linear.fprop.a.format
    assert fmt is not None
    assert (fmt.name, fmt.block) == ("nvfp4_1x32", (1, 32))


def test_every_recipe_named_exists() -> None:
    named = {"nvfp4_last4", "nvfp4-rht", "nvfp4_base+sr.dgrad", "mxfp6_e2m3"}
    assert all(f"`{name}`" in GUIDE for name in named)
    for name in named:
        recipes.get(name)


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_options_exist(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = re.sub(r"\s+", " ", PAGES[page])
    used = [words.split() for words in re.findall(r"`fp4lab ([a-z]+ [^`]*)`", text)]
    assert len(used) > 5
    for name, *words in used:
        assert name in cli.COMMANDS
        command = [name, *(word for word in words[:1] if word == "prepare")]
        with pytest.raises(SystemExit):
            cli.main([*command, "--help"])
        shown = capsys.readouterr().out
        for option in (word for word in words if word.startswith("--")):
            assert f"{option} " in shown or f"{option}," in shown, (name, option)
