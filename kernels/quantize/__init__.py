"""Block quantization: scales and elements of every block format."""
