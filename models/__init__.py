"""Models: plain single-device modules that know nothing of recipes, parallelism or training."""

if __name__ != "fp4lab.models":
    raise ImportError(f"{__name__!r} is the package fp4lab.models; import it by that name")
