"""Training: a run as data, the loop, checkpoints and metrics."""
