"""fp4lab: training in 4- and 8-bit floating point, emulated bit for bit on any machine."""

__version__ = "0.1.0"
