"""The C structures that several operators share, and how tensors are passed.

A tensor goes to C as the address of its memory, so whoever passes one has checked its device, dtype
and layout first.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from fp4lab.formats import ElementType, Hadamard, Overflow, Ties
from fp4lab.kernels.hadamard.reference import matrix
from fp4lab.kernels.philox.reference import noise_words

#: numbers from which on the work is shared among torch's threads; a barrier costs more below
PARALLEL = 1 << 18


class Element(ctypes.Structure):
    """`element_t` of minifloat/cpu.h."""

    _fields_ = (
        *((n, ctypes.c_int32) for n in ("mantissa_bits", "min_exponent", "max_exponent")),
        *((n, ctypes.c_int32) for n in ("ties", "overflow", "short_float", "has_zero")),
        *((n, ctypes.c_int32) for n in ("max_code", "sign_code", "nan_code", "inf_code")),
        *((n, ctypes.c_float) for n in ("max_value", "beyond")),
    )


class CHadamard(ctypes.Structure):
    """`hadamard_t` of hadamard/cpu.h."""

    _fields_ = (("size", ctypes.c_int32), ("matrix", ctypes.c_void_p))


class Noise(ctypes.Structure):
    """`noise_t` of philox/cpu.h."""

    _fields_ = (
        ("bits", ctypes.c_int32),
        ("key", ctypes.c_uint32 * 2),
        ("step", ctypes.c_uint32),
        ("microbatch", ctypes.c_uint32),
        ("column_offset", ctypes.c_int64),
    )


@lru_cache(maxsize=256)
def element(
    e: ElementType, ties: Ties = Ties.EVEN, overflow: Overflow = Overflow.SATURATE
) -> Element:
    """An element type with its rounding rules."""
    nan, inf = e.nan_code or 0, e.inf_code
    return Element(
        mantissa_bits=e.mantissa_bits,
        min_exponent=e.min_exponent,
        max_exponent=e.max_exponent,
        ties=ties,
        overflow=overflow,
        short_float=e.is_short_float32,
        has_zero=e.has_zero,
        max_code=e.max_code,
        sign_code=e.sign_code,
        nan_code=nan,
        inf_code=nan if inf is None else inf,
        max_value=e.max_value,
        beyond=e.beyond_max,
    )


def noise(state: Tensor, stream: int, bits: int, column_offset: int) -> Noise:
    """Where the noise of a stream begins."""
    filled = Noise(bits=bits, column_offset=column_offset)
    words = noise_words(state, stream, bits)
    filled.key[0], filled.key[1], filled.step, filled.microbatch = words
    return filled


def hadamard(transform: Hadamard | None) -> CHadamard:
    """A transform, which keeps its matrix as long as it lives; or none."""
    if transform is None:
        return CHadamard(1, None)
    numbers = matrix(transform)
    filled = CHadamard(transform.size, numbers.data_ptr())
    filled.held = numbers
    return filled


def threads(count: int) -> int:
    """How many threads share work on `count` numbers."""
    return torch.get_num_threads() if count >= PARALLEL else 1


def plain(x: Tensor) -> bool:
    """Whether a tensor's memory can be read by C."""
    return x.is_cpu and type(x) in (Tensor, torch.nn.Parameter)


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers begin."""
    return None if tensor is None else tensor.data_ptr()
