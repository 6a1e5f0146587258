"""A comparison's folder, as the studies write it, with every awkward thing in it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fp4lab import recipes
from fp4lab.instruments.error_rows import LayerErrors, OperandError, ProductError
from fp4lab.recipes.places import GEMMS, PLACES
from fp4lab.report.folder import ERRORS, SUMMARY, ComparisonRecord, run_folder, write_errors
from fp4lab.report.summary import Failure, Neighbours, RecipeSummary, Summary
from fp4lab.train import RunConfig, toml
from fp4lab.train.folder import RunRecord

ENVIRONMENT = {"torch": "2.13.0", "device": "a <fast> one & only", "threads": 1, "git": None}
UNREACHABLE = """recipe mxfp4: 1 converted, 1 unreachable
name           kind    action       numerics  reason
-------------  ------  -----------  --------  ----------------------------------
up             Linear  converted    mxfp4     the recipe's default
attn.out_proj  Linear  unreachable            its parent never calls it
"""
LAYERS = ("blocks.0.mlp.up", "blocks.0.mlp.<down>")


def recipe(loss: float | None, gap: float | None, **fields: object) -> RecipeSummary:
    values: dict[str, object] = {
        "val_loss": loss,
        "val_losses": {} if loss is None else {"0": loss - 0.01, "1": loss + 0.01},
        "bits_per_byte": loss and loss / 0.6931471805599453,
        "gap": gap,
        "gap_percent": None if gap is None else 100 * gap / 1.6,
        "interval": None,
        "interval_percent": None,
        "seeds": 0 if loss is None else 2,
        "verdict": "resolved",
        "validation_error": None,
        "step_time_ratio": None,
        "step_time_spread": None,
        "failed": (),
        "diff": "fprop.a.format: bf16 -> nvfp4",
    }
    return RecipeSummary(**{**values, **fields})  # type: ignore[arg-type]


def layer_errors(sqnr_db: float | None) -> LayerErrors:
    operands, products = [], []
    for layer in LAYERS:
        for place in PLACES:
            figures = (0.07, 0.0, sqnr_db, 1e-2, 0.99, 1.0)
            operands.append(OperandError(layer, place.gemm, place.label, "nvfp4", *figures))
        for gemm, product in GEMMS.items():
            worse = None if sqnr_db is None else sqnr_db - (3.0 if "<" in layer else 2.0)
            products.append(ProductError(layer, gemm, product, worse, 1e-2, 0.98, 0.99))
    return LayerErrors(tuple(operands), tuple(products))


def make_summary() -> Summary:
    return Summary(
        baseline="bf16",
        order=("bf16", "nvfp4", "mxfp4", "broken"),
        recipes={
            "bf16": recipe(1.6, 0.0, verdict="baseline", step_time_ratio=1.0,
                           step_time_spread=(1.0, 1.0)),
            "nvfp4": recipe(1.7, 0.1, interval=(0.08, 0.12), interval_percent=(5.0, 7.5),
                            step_time_ratio=1.43, step_time_spread=(1.4, 1.5),
                            validation_error=0.002),
            "mxfp4": recipe(1.75, 0.15, failed=(Failure(1, "killed by SIGKILL twice"),)),
            "broken": recipe(None, None, verdict="failed",
                             failed=(Failure(0, "NaN in <script>alert(1)</script>"),)),
        },
        neighbours=(
            Neighbours("bf16", "nvfp4", 0.1, (0.08, 0.12), "resolved"),
            Neighbours("nvfp4", "mxfp4", 0.05, (-0.01, 0.11), "unresolved"),
        ),
        confidence=0.95,
        notes=("25 tokens per parameter",),
    )  # fmt: skip


def write_run(folder: Path, *, recipe: str = "bf16", seed: int = 0, **config: Any) -> None:
    """The records of a run that has just begun."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = RunConfig(recipe=recipe, seed=seed, **config)
    chosen = recipes.get(recipe)
    record = RunRecord.make(settings, recipe=chosen, data=None, environment=ENVIRONMENT)
    unreachable = ("attn.out_proj",) if recipe == "mxfp4" else ()
    dataclasses.replace(record, unreachable=unreachable).save(folder)
    (folder / "config.toml").write_text(toml.dumps(settings))
    (folder / "recipe.toml").write_text(chosen.to_toml())


@pytest.fixture
def summary() -> Summary:
    return make_summary()


@pytest.fixture(scope="module")
def comparison_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("comparison")
    make_summary().write(tmp_path / SUMMARY)
    errors = {"bf16": layer_errors(None), "nvfp4": layer_errors(20.0), "mxfp4": layer_errors(18.0)}
    write_errors(tmp_path / ERRORS, errors)
    facts = {
        "Model": {"name": "tiny", "parameters": "1,200", "parameters without embeddings": "1,000"},
        "Training": {"steps": "200", "tokens": "25,000", "tokens per parameter": "25.0",
                     "device": "cpu", "dtype": "float32", "finished": "2026-01-02 03:04 UTC"},
        "Data": {"name": "stdlib"},
    }  # fmt: skip
    ComparisonRecord(settings={}, recipes={}, threads=1, facts=facts).write(tmp_path)
    rng = np.random.default_rng(0)
    for name, gap in (("bf16", 0.0), ("nvfp4", 0.1), ("mxfp4", 0.15), ("broken", 0.2)):
        for seed in (0, 1):
            folder = run_folder(tmp_path, name, seed)
            folder.mkdir(parents=True)
            if name != "broken":
                write_run(folder, recipe=name, seed=seed)
                conversion = UNREACHABLE if name == "mxfp4" else f"recipe {name}: 1 converted\n"
                (folder / "conversion.txt").write_text(conversion)
            last = 30 if name == "broken" else 200
            with (folder / "metrics.jsonl").open("w") as file:
                for step in range(1, last + 1):
                    loss = 1.6 + gap + 3 * np.exp(-step / 20) + rng.normal(0, 0.02)
                    file.write(json.dumps({"kind": "train", "step": step, "loss": loss}) + "\n")
                    if step % 50 == 0:
                        loss = 1.6 + gap + 3 * np.exp(-step / 20)
                        file.write(json.dumps({"kind": "eval", "step": step, "loss": loss}) + "\n")
                file.write('{"kind": "train", "st')
    return tmp_path
