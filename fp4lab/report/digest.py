"""The errors of each recipe's products over all layers, in a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from fp4lab.instruments.error_rows import LayerErrors, ProductError
from fp4lab.recipes.places import GEMMS


@dataclass(frozen=True)
class Digest:
    """One product (Y, dX or dW) of one recipe over all layers."""

    recipe: str
    product: str
    sqnr_db: float | None
    lowest_db: float | None
    layer: str
    cosine: float | None
    gain: float | None


def digest(errors: Mapping[str, LayerErrors]) -> list[Digest]:
    """Medians over the layers, and the layer with the lowest SQNR."""
    return [
        _digest(name, product, [row for row in found.products if row.product == product])
        for name, found in errors.items()
        for product in GEMMS.values()
        if any(row.product == product for row in found.products)
    ]


def _digest(name: str, product: str, rows: list[ProductError]) -> Digest:
    noisy = {row.layer: row.sqnr_db for row in rows if row.sqnr_db is not None}
    worst = min(noisy, key=noisy.__getitem__) if noisy else ""
    return Digest(
        recipe=name,
        product=product,
        sqnr_db=_median(list(noisy.values())),
        lowest_db=noisy.get(worst),
        layer=worst,
        cosine=_median([row.cosine for row in rows if row.cosine is not None]),
        gain=_median([row.gain for row in rows if row.gain is not None]),
    )


def _median(values: list[float]) -> float | None:
    return median(values) if values else None
