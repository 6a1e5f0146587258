"""The Hadamard transform as data: size and signs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from fp4lab.errors import InputError, expect, whole
from fp4lab.formats.elements import compute_properties

#: the fixed sign vector of Transformer Engine's NVFP4 recipe (all layers, all of training)
NVFP4_SIGNS: tuple[int, ...] = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)


@dataclass(frozen=True)
class Hadamard:
    """A block-diagonal random Hadamard transform: x -> (x * signs) @ H / sqrt(size) per block.

    `signs` is None (no signs), a fixed vector of `size` entries +-1, or a seed from which one fixed
    vector is drawn. Both operands of a GEMM must carry the same transform along the contracted
    axis, where it cancels: (x S H)(w S H)^T = x w^T. H is Sylvester's, of +-1.

    Raises:
        InputError: a size that is not a power of two, or signs that do not fit.

    It spreads an outlier over its block:

    >>> import torch, fp4lab
    >>> x = torch.tensor([[8.0] + [0.0] * 15])
    >>> q = fp4lab.quantize(x, fp4lab.formats.NVFP4, hadamard=Hadamard(16))
    >>> q.dequantize()[0, :4]
    tensor([2., 2., 2., 2.])
    """

    size: int = 16
    signs: tuple[int, ...] | int | None = None

    def __post_init__(self) -> None:
        whole("size", self.size, 1, 1 << 31)
        if not isinstance(self.signs, tuple) and self.signs is not None:
            expect("signs", self.signs, int, "give a tuple of one sign per entry, a seed, or None")
        if self.size < 1 or self.size & (self.size - 1):
            raise InputError(
                f"size={self.size} of Hadamard is not a power of two; give 16, 32 or another one"
            )
        if self.vector and len(self.vector) != self.size:
            raise InputError(
                f"signs of Hadamard has {len(self.vector)} entries for size={self.size}; "
                "give one sign per entry, a seed, or None"
            )
        if any(sign not in (-1, 1) for sign in self.vector):
            raise InputError(f"signs={self.signs} of Hadamard may hold only -1 and 1")
        compute_properties(self)

    @cached_property
    def vector(self) -> tuple[int, ...]:
        """The sign of every entry; empty where there are none.

        A seed gives the bits of SHA-256("hadamard/<seed>/<n>"), n = 0, 1, .., least significant
        bit of each byte first; a 1 is a minus.
        """
        if self.signs is None:
            return ()
        if isinstance(self.signs, tuple):
            return self.signs
        texts = (f"hadamard/{self.signs}/{n}" for n in range(-(-self.size // 256)))
        stream = b"".join(hashlib.sha256(text.encode()).digest() for text in texts)
        return tuple(1 - 2 * (stream[i // 8] >> (i % 8) & 1) for i in range(self.size))

    @cached_property
    def definition(self) -> str:
        """Size and signs as text for operators (`from_definition` inverts it).

        >>> Hadamard(4, (1, 1, -1, 1)).definition
        '4++-+'
        """
        return str(self.size) + "".join("+" if sign > 0 else "-" for sign in self.vector)

    @staticmethod
    def from_definition(text: str) -> Hadamard:
        """Inverse of `definition`."""
        size = text.rstrip("+-")
        signs = tuple(1 if sign == "+" else -1 for sign in text[len(size) :])
        return Hadamard(int(size), signs or None)
