"""What a comparison found, as files, figures, a page and a table.

This room knows the files of a comparison's folder and nothing of how they came about.
"""

from fp4lab.report.differences import Difference, Differences, differences
from fp4lab.report.error_map import share_map, sqnr_map
from fp4lab.report.figures import gap_bars, loss_curves, relative_curves
from fp4lab.report.folder import Findings, read_findings
from fp4lab.report.html import write
from fp4lab.report.summary import Failure, Neighbours, RecipeSummary, Summary
from fp4lab.report.terminal import needed, show, table

__all__ = [
    "Difference",
    "Differences",
    "Failure",
    "Findings",
    "Neighbours",
    "RecipeSummary",
    "Summary",
    "differences",
    "gap_bars",
    "loss_curves",
    "needed",
    "read_findings",
    "relative_curves",
    "share_map",
    "show",
    "sqnr_map",
    "table",
    "write",
]
