"""Recorded arrays: loading them, and comparing one with what fp4lab computes.

Equal means equal bytes, with two exceptions that are counted and shown: a NaN equals a NaN whatever
its sign and payload, and a comparison may name elements that have no meaning (`Ours.skip`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fp4lab.formats import ElementType

FOLDER = Path(__file__).parent
Array = NDArray[np.generic]


@cache
def load(file: str) -> dict[str, Array]:
    """All arrays of a recorded file."""
    with np.load(FOLDER / f"{file}.npz") as arrays:
        return dict(arrays)


def tensor(array: Array) -> Tensor:
    """A recorded array as a tensor; uint16 holds the bits of bfloat16."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@dataclass(frozen=True, kw_only=True)
class Ours:
    """What fp4lab computes for a key.

    `element` says which codes are NaN, where they are codes. `skip` marks elements that are not
    compared, for the reason `why`.
    """

    array: Array
    element: ElementType | None = None
    skip: Array | None = None
    why: str = ""


class Outcome(NamedTuple):
    """A comparison: elements that differ, that were skipped, and NaNs that differ in payload."""

    different: int
    skipped: int
    payloads: int
    compared: int
    why: str


def outcome(ours: Ours, recorded: Array) -> Outcome:
    assert ours.array.shape == recorded.shape
    assert ours.array.dtype == recorded.dtype
    different = bits(ours.array) != bits(recorded)
    both_nan = is_nan(ours.array, ours.element) & is_nan(recorded, ours.element)
    skip = np.zeros(recorded.shape, bool) if ours.skip is None else ours.skip
    return Outcome(
        different=int((different & ~both_nan & ~skip).sum()),
        skipped=int(skip.sum()),
        payloads=int((different & both_nan & ~skip).sum()),
        compared=int((~skip).sum()),
        why=ours.why,
    )


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def is_nan(array: Array, element: ElementType | None) -> Array:
    if array.dtype.kind == "f":
        return np.isnan(array)
    if element is None or element.nan_code is None:
        return np.zeros(array.shape, bool)
    magnitude = array & ~np.uint8(element.sign_code)
    return (magnitude > element.max_code) & (magnitude != (element.inf_code or -1))
