"""Statistics of tensors and GEMMs, measured on a model from outside."""
