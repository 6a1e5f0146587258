"""Quantized tensors, and the files that hold them."""

from fp4lab.tensor.files import load, save
from fp4lab.tensor.quantized import QuantizedTensor

__all__ = ["QuantizedTensor", "load", "save"]
