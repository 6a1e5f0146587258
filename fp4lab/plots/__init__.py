"""Figures about formats, rounding and quantized tensors, for notebooks and papers.

Every function draws on the matplotlib Axes `ax`, or on one of a new figure, and returns it. None
shows or saves anything or changes matplotlib's settings: text has the colour of the style in force,
and lines the report's colours, which read on white and on black and differ in shape too.

>>> from fp4lab import formats, plots
>>> plots.staircase(formats.E2M1).get_xlabel()
'input'
"""

from fp4lab.plots.averages import averaged_error
from fp4lab.plots.blocks import block_scales, quantized_row
from fp4lab.plots.histogram import error_histogram
from fp4lab.plots.lines import number_line, scaled_number_lines
from fp4lab.plots.outlier import outlier_curve
from fp4lab.plots.stairs import staircase, stochastic_staircase

__all__ = [
    "averaged_error",
    "block_scales",
    "error_histogram",
    "number_line",
    "outlier_curve",
    "quantized_row",
    "scaled_number_lines",
    "staircase",
    "stochastic_staircase",
]
