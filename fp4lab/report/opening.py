"""What the report says first: what was trained, and what the recipes did not reach."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fp4lab.report.folder import Findings


def opening(found: Findings) -> str:
    """Model, training and data in two sentences, as far as the facts tell."""
    facts, names = found.facts, list(found.summary.recipes)
    model, training = facts.get("Model", {}), facts.get("Training", {})
    seeds = sorted({seed for runs in found.curves.values() for seed in runs})
    under = f"{len(names)} recipe{_s(names)} with {len(seeds)} seed{_s(seeds)} each"
    first = [
        f"A {model.get('name', 'model')}{_of_parameters(model)} was trained",
        f"for {training.get('steps', '?')} steps{_on_tokens(training, facts.get('Data', {}))}",
        f"under {under} ({', '.join(map(str, seeds))}).",
    ]
    environment = facts.get("Environment", {})
    place = _joined(training.get("device"), environment.get("device"))
    second = [f"The runs were made on {place or 'an unknown device'}"]
    second += [f"in {training['dtype']}"] if "dtype" in training else []
    second += [f"and finished on {environment['finished']}"] if "finished" in environment else []
    return f"{' '.join(first)} {' '.join(second)}."


def _of_parameters(model: Mapping[str, str]) -> str:
    if "parameters" not in model:
        return ""
    inner = model.get("parameters without embeddings")
    return f" of {model['parameters']} parameters" + (
        f" ({inner} without embeddings)" if inner else ""
    )


def _on_tokens(training: Mapping[str, str], data: Mapping[str, str]) -> str:
    if "tokens" not in training:
        return ""
    ratio = training["tokens per parameter"]
    return (
        f" on {training['tokens']} tokens of the text {data['name']} ({ratio} for each parameter"
        " without embeddings)"
    )


def _joined(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)


def _s(things: list[str] | list[int]) -> str:
    return "" if len(things) == 1 else "s"


def unreached(conversions: Mapping[str, str]) -> list[str]:
    """A sentence for every recipe whose conversion table has layers that were not reached."""
    sentences = []
    for recipe, text in conversions.items():
        # columns are two spaces or more apart: name, kind, action, numerics, reason
        rows = [re.split(r" {2,}", line) for line in text.splitlines()]
        names = [row[0] for row in rows if row[2:3] == ["unreachable"]]
        if names:
            sentences.append(
                f"{recipe} did not reach {', '.join(names)}: what was trained there is not this"
                " recipe (the reason stands under Recipes)."
            )
    return sentences
