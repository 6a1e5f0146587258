<<<<<<< HEAD
"""Statistics of tensors and GEMMs, measured on a model from outside."""
=======
"""Instruments: what happens inside a model while it trains."""

from fp4lab.instruments.nonfinite import Finding, first_nonfinite

__all__ = ["Finding", "first_nonfinite"]
>>>>>>> train
