"""Layers that obey a recipe, and the conversion of a model to them."""

from fp4lab.nn.convert import convert, set_recipe, set_step, unconvert
from fp4lab.nn.disabled import disabled
from fp4lab.nn.linear import Linear
from fp4lab.nn.report import ConversionReport, Row

__all__ = [
    "ConversionReport",
    "Linear",
    "Row",
    "convert",
    "disabled",
    "set_recipe",
    "set_step",
    "unconvert",
]
