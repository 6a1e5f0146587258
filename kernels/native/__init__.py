"""The C operators as one shared library: `build.py` compiles it, `library.py` loads it.

What they are given is described in `structures.py`; `memory.py` is where they write their results.
"""
