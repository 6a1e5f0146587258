"""What the Triton versions of all operators share; nothing here is imported before it is used."""
