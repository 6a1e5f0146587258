"""Layers that obey a recipe, and the conversion of a model to them.

A training loop calls `set_step` before every forward. Where the loop is a library's, its callback
does; that of transformers' Trainer:

    class RoundingNoise(TrainerCallback):
        def on_step_begin(self, args, state, control, model, **_):
            fp4lab.set_step(model, state.global_step)

With gradient accumulation, `on_substep_end` sets the number of the microbatch likewise.
"""

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
