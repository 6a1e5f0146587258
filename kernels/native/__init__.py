"""The C operators as one shared library: `build.py` compiles it, `library.py` loads it."""
