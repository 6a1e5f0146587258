"""Counter-based random numbers: Philox4x32-10, keyed by seed and layer, counted by position."""
