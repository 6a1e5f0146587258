"""Layers that obey a recipe."""

from fp4lab.nn.linear import Linear

__all__ = ["Linear"]
