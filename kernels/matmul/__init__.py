"""Products of quantized operands with the second-level scales in the epilogue."""
