"""fp4lab: training in 4- and 8-bit floating point, emulated bit for bit on any machine.

>>> import torch, fp4lab
>>> from fp4lab import formats
>>> x = torch.randn(64, 128)
>>> q = fp4lab.quantize(x, formats.NVFP4)       # codes, block scales, amax
>>> fp4lab.error(x, formats.NVFP4).sqnr_db > 18
True

Names are imported when they are first used, for most need torch. `import fp4lab.nn` does it at
once, which registers the operators for an exported program that is loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fp4lab.face import *  # noqa: F403
    from fp4lab.studies import compare as compare
else:

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return _names()
        if not name.startswith("_"):
            # a room first: one may be asked for while another is imported, when the face cannot be
            if importlib.util.find_spec(f"fp4lab.{name}") is not None:
                return importlib.import_module(f"fp4lab.{name}")
            # training needs more libraries than quantizing does
            home = "fp4lab.studies" if name == "compare" else "fp4lab.face"
            found = getattr(importlib.import_module(home), name, None)
            if found is not None:
                globals()[name] = found
                return found
        raise AttributeError(f"module 'fp4lab' has no attribute {name!r}")


def _names() -> list[str]:
    return sorted([*importlib.import_module("fp4lab.face").__all__, "compare"])


def __dir__() -> list[str]:
    return sorted({*globals(), *_names()})
