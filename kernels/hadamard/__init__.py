"""The block-diagonal random Hadamard transform."""
