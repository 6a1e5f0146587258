"""Controlled experiments: training that differs in the recipe only, and what the gap is worth."""
