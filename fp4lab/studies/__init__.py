"""Controlled experiments: training that differs in the recipe only, and what the gap is worth."""

from fp4lab.studies.comparison import compare, compare_runs
from fp4lab.studies.plan import Comparison
from fp4lab.studies.statistics import PairedGap, paired_gap, sampling_error, student_interval
from fp4lab.studies.tasks import cross_entropy

__all__ = [
    "Comparison",
    "PairedGap",
    "compare",
    "compare_runs",
    "cross_entropy",
    "paired_gap",
    "sampling_error",
    "student_interval",
]
