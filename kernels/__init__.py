"""Numeric operators, a folder each: `reference.py` is the definition, faster versions equal it."""

if __name__ != "fp4lab.kernels":
    # Libraries look whether another package of this name is installed, and find this folder from a
    # checkout's root. To them it looks like a folder without a package; whoever uses it is told.
    __file__ = None  # type: ignore[assignment]
    __path__ = []

    def __getattr__(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(f"{__name__!r} is the package fp4lab.kernels; import it by that name")
