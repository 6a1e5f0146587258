"""The rows of a quantization-error table and their JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OperandError:
    """One operand of one GEMM, quantized, against itself in full precision.

    `operand` is X, W, dY or the transpose that enters: W^T, dY^T, X^T. `underflow` is the part of
    the nonzero values that became zero, `saturation` the part that lay beyond the largest value of
    the format, `gain` = <q, x> / <x, x>. `sqnr_db` is None where there is no error at all, and what
    is not finite is None too.
    """

    layer: str
    gemm: str
    operand: str
    format: str | None
    underflow: float
    saturation: float
    sqnr_db: float | None
    relative_mse: float | None
    cosine: float | None
    gain: float | None


@dataclass(frozen=True)
class ProductError:
    """One GEMM with its quantized operands against float64 on the same tensors.

    `product` is Y (output), dX (input gradient) or dW (weight gradient).
    """

    layer: str
    gemm: str
    product: str
    sqnr_db: float | None
    relative_mse: float | None
    cosine: float | None
    gain: float | None


@dataclass(frozen=True)
class LayerErrors:
    """The errors of all quantized layers of a model on one batch, in the order of the model.

    >>> row = ProductError("head", "fprop", "Y", 20.0, 0.01, cosine=0.995, gain=1.0)
    >>> LayerErrors((), (row,)).products[0].sqnr_db
    20.0
    """

    operands: tuple[OperandError, ...]
    products: tuple[ProductError, ...]
