"""What is quantized where, as data: operands, layer rules, schedules and the published recipes.

>>> from fp4lab import recipes
>>> print(recipes.get("nvfp4").linear)
    fprop        dgrad        wgrad (along tokens)
--  -----------  -----------  --------------------
X   nvfp4        -            nvfp4 RHT16
W   nvfp4_16x16  as in fprop  -
dY  -            nvfp4 SR8    nvfp4 SR8 RHT16
"""

from fp4lab.recipes import published
from fp4lab.recipes.files import find, read
from fp4lab.recipes.operands import Gemm, LinearRecipe, Operand, Source
from fp4lab.recipes.recipe import Recipe, Switch
from fp4lab.recipes.registry import get, names, register
from fp4lab.recipes.rules import Blocks, Layer, Resolved, Rule

for _recipe in published.PUBLISHED:
    register(_recipe)

__all__ = [
    "Blocks",
    "Gemm",
    "Layer",
    "LinearRecipe",
    "Operand",
    "Recipe",
    "Resolved",
    "Rule",
    "Source",
    "Switch",
    "find",
    "get",
    "names",
    "read",
    "register",
]
