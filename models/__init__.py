"""Models: plain single-device modules that know nothing of recipes, parallelism or training."""

if __name__ != "fp4lab.models":
    raise ImportError(f"{__name__!r} is the package fp4lab.models; import it by that name")

from fp4lab.models.gpt import GPT
from fp4lab.models.gpt_config import PRESETS, GPTConfig, get_preset

__all__ = ["GPT", "PRESETS", "GPTConfig", "get_preset"]
