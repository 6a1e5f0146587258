"""The examples in the docstrings run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_with_examples() -> list[str]:
    """The dotted names, through the links to kernels/ and models/, as a user imports them."""
    paths = (
        Path(folder) / name
        for folder, _, names in os.walk(ROOT / "fp4lab", followlinks=True)
        for name in names
        if name.endswith(".py")
    )
    return sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in paths
        if ">>> " in path.read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(module, optionflags=FLAGS)
    assert result.attempted > 0, f"{name} holds '>>> ' outside of a docstring"
    assert result.failed == 0
