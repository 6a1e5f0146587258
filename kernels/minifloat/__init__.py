"""Rounding to a minifloat grid, and codes to values and back."""
