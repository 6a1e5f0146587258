"""What happens inside a model while it trains: errors of its GEMMs, and where NaN came from."""

from fp4lab.instruments.error_rows import LayerErrors, OperandError, ProductError
from fp4lab.instruments.gemm_errors import gemm_errors
from fp4lab.instruments.nonfinite import Finding, first_nonfinite

__all__ = [
    "Finding",
    "LayerErrors",
    "OperandError",
    "ProductError",
    "first_nonfinite",
    "gemm_errors",
]
