"""What the report says first: what was trained, and what the recipes did not reach."""

from __future__ import annotations

from fp4lab.report.folder import Findings


def opening(found: Findings) -> str:
    """Model, training and data in a sentence, as far as the facts tell."""
    facts, seeds = found.facts, found.seeds
    model, training, data = (facts.get(title, {}) for title in ("Model", "Training", "Data"))
    named = f" {model['name']} ({model['parameters']} parameters)" if model else ""
    on = f" on {training['tokens']} tokens of {data['name']}" if "tokens" in training else ""
    count = len(found.summary.recipes)
    devices = dict.fromkeys(run.facts.get(("environment", "device")) for run in found.runs.values())
    place = ", ".join(device for device in devices if device)
    return (
        f"The model{named} was trained for {training.get('steps', '?')} steps{on} under"
        f" {count} recipe{'s' * (count != 1)} with {len(seeds)} seed{'s' * (len(seeds) != 1)} each"
        f" ({', '.join(map(str, seeds))}){f', on {place}' if place else ''}."
    )


def unreached(found: Findings) -> list[str]:
    """The layers that recipes did not reach, a sentence each group."""
    missed: dict[tuple[str, ...], dict[str, None]] = {}
    for run in found.runs.values():
        if run.unreachable:
            missed.setdefault(run.unreachable, {})[run.facts["recipe", "name"]] = None
    return [
        f"Unreachable for {', '.join(recipes)}: {', '.join(names)} kept the model's own arithmetic;"
        " the reason stands under Recipes."
        for names, recipes in missed.items()
    ]
