"""What the catalogue's parts share: inputs, quantized once for each backend, and keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from torch import Tensor

import fp4lab
from fp4lab.formats import BlockFormat, Hadamard
from fp4lab.kernels import backends
from tests.golden.arrays import Ours, load, tensor

FUSED = (
    "one element is a float32 subnormal whose last bit differs: the recorded matrix product scales "
    "each term before it is added, in one rounding; here the sum is scaled at its end"
)


class Family(NamedTuple):
    """Keys of one file that are computed alike: `pattern` gives the arguments of `compute`."""

    file: str
    pattern: str
    compute: Callable[..., Ours]


def recorded_input(name: str) -> Tensor:
    """An input by the name that keys begin with."""
    return tensor(load("inputs")[{"normal_256x256": "multi_tile_256"}.get(name, name)])


@cache
def _quantized(
    x: str, fmt: BlockFormat, axis: int, hadamard: Hadamard | None, backend: str
) -> fp4lab.QuantizedTensor:
    assert backend == backends.forced()
    return fp4lab.quantize(recorded_input(x), fmt, axis=axis, hadamard=hadamard, ragged="pad")


def quantized(
    x: str, fmt: BlockFormat, axis: int = -1, hadamard: Hadamard | None = None
) -> fp4lab.QuantizedTensor:
    """An input in a format, computed once by each backend."""
    return _quantized(x, fmt, axis, hadamard, backends.forced())
