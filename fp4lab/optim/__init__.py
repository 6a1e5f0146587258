"""Optimizers and learning-rate schedules."""

from fp4lab.optim.adamw import build_optimizer
from fp4lab.optim.schedule import Schedule

__all__ = ["Schedule", "build_optimizer"]
