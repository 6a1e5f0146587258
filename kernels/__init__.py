"""Numeric operators, a folder each: `reference.py` is the definition, faster versions equal it."""

if __name__ != "fp4lab.kernels":
    raise ImportError(f"{__name__!r} is the package fp4lab.kernels; import it by that name")
