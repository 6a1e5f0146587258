"""The examples in the docstrings run and print what they say, and nothing exported lacks one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
from pathlib import Path

import pytest

from fp4lab.formats import table
from fp4lab.recipes import registry

ROOT = Path(__file__).resolve().parents[1]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

#: the packages of whose `__all__` every function and class has an example
ROOMS = (
    *("fp4lab", "fp4lab.data", "fp4lab.formats", "fp4lab.functional", "fp4lab.instruments"),
    *("fp4lab.models", "fp4lab.nn", "fp4lab.optim", "fp4lab.plots", "fp4lab.recipes"),
    *("fp4lab.compat", "fp4lab.interop", "fp4lab.studies", "fp4lab.tensor"),
)
_MEMBERS = "an enum whose members explain themselves"
#: what needs no example of its own, and why
WITHOUT_EXAMPLE = {
    "fp4lab.errors.NonFiniteError": "raised by a whole training run only",
    "fp4lab.formats.scaling.BlockScale": _MEMBERS,
    "fp4lab.formats.scaling.Level": _MEMBERS,
    "fp4lab.formats.scaling.Selection": _MEMBERS,
    "fp4lab.formats.elements.Specials": _MEMBERS,
    "fp4lab.functional.measures.Error": "explained field by field; `compare` and `error` show it",
    "fp4lab.interop.checkpoint.Checkpoint": "what `read` gives and shows",
    "fp4lab.interop.inspecting.Inspection": "what `inspect` gives and shows",
    "fp4lab.interop.inspecting.TensorRow": "a row of an `Inspection`",
    "fp4lab.interop.inspecting.WeightRow": "a row of an `Inspection`",
    "fp4lab.interop.quantizing.Row": "a row of a `Summary`",
    "fp4lab.interop.quantizing.Summary": "what `quantize` gives and shows",
    "fp4lab.instruments.error_rows.OperandError": "a row that `gemm_errors` makes and shows",
    "fp4lab.instruments.error_rows.ProductError": "a row that `gemm_errors` makes and shows",
    "fp4lab.recipes.operands.Source": _MEMBERS,
    "fp4lab.studies.comparison.compare_runs": "it trains; `fp4lab compare` calls it",
    "fp4lab.studies.plan.Comparison": "what `compare` gives and shows",
}


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
    # what an example writes or registers is gone after it
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table, "_FORMATS", dict(table._FORMATS))
    monkeypatch.setattr(registry, "_RECIPES", dict(registry._RECIPES))
    result = doctest.testmod(module, optionflags=FLAGS)
    assert result.attempted > 0, f"{name} holds '>>> ' outside of a docstring"
    assert result.failed == 0


def test_what_is_exported_has_an_example() -> None:
    # an example counts where doctest finds it: in a function, a class, or a method of the class
    collected, finder = set(modules_with_examples()), doctest.DocTestFinder()
    without = set()
    for room in map(importlib.import_module, ROOMS):
        for thing in (getattr(room, name) for name in room.__all__):
            if inspect.isclass(thing) or inspect.isroutine(thing):
                found = any(test.examples for test in finder.find(thing, thing.__qualname__))
                if not found or thing.__module__ not in collected:
                    without.add(f"{thing.__module__}.{thing.__qualname__}")
    assert without == set(WITHOUT_EXAMPLE)
