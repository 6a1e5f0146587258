"""Torch-free descriptions shared by the runtime and the planner, and how they are written down."""
