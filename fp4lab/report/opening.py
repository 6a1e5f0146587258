"""What the report says first: what was trained, and what the recipes did not reach."""

from __future__ import annotations

from collections.abc import Mapping

from fp4lab.nn.report import names_in
from fp4lab.report.folder import Findings


def opening(found: Findings) -> str:
    """Model, training and data in two sentences, as far as the facts tell."""
    facts, names = found.facts, list(found.summary.recipes)
    model, training = facts.get("Model", {}), facts.get("Training", {})
    seeds = found.seeds
    under = f"{len(names)} recipe{_s(names)} with {len(seeds)} seed{_s(seeds)} each"
    first = [
        f"The model{_named(model)} was trained",
        f"for {training.get('steps', '?')} steps{_on_tokens(training, facts.get('Data', {}))}",
        f"under {under} ({', '.join(map(str, seeds))}).",
    ]
    environment = facts.get("Environment", {})
    place = ", ".join(d["device"] for d in (training, environment) if "device" in d)
    second = [f"The runs were made on {place or 'an unknown device'}"]
    second += [f"with dtype {training['dtype']}"] if "dtype" in training else []
    second += [f"and finished on {environment['finished']}"] if "finished" in environment else []
    return f"{' '.join(first)} {' '.join(second)}."


def _named(model: Mapping[str, str]) -> str:
    if not model:
        return ""
    inner = model.get("parameters without embeddings")
    without = f", {inner} without embeddings" if inner else ""
    return f" {model['name']} ({model['parameters']} parameters{without})"


def _on_tokens(training: Mapping[str, str], data: Mapping[str, str]) -> str:
    if "tokens" not in training:
        return ""
    ratio = training["tokens per parameter"]
    return (
        f" on {training['tokens']} tokens of the text {data['name']} ({ratio} for each parameter"
        " without embeddings)"
    )


def _s(things: list[str] | list[int]) -> str:
    return "" if len(things) == 1 else "s"


def unreached(conversions: Mapping[str, str]) -> list[str]:
    """The layers that recipes did not reach, by their conversion tables, a sentence each group."""
    missed: dict[str, list[str]] = {}
    for recipe, text in conversions.items():
        if names := names_in(text, "unreachable"):
            missed.setdefault(", ".join(names), []).append(recipe)
    return [
        f"Unreachable for {', '.join(recipes)}: {names} kept the model's own arithmetic; the reason"
        " stands under Recipes."
        for names, recipes in missed.items()
    ]
