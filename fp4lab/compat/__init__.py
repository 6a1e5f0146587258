"""Which format reproduces which tool, bit for bit, and how the tools differ.

`TABLE` has a row for everything that recorded arrays of a tool prove (`tests/golden`). What differs
from Transformer Engine is read off the fields of the row's format, in words; what no field holds is
said in `limits`. Left out: reading the tools' files.

>>> from fp4lab import compat
>>> [row.format.name for row in compat.get("ggml")]
['nvfp4_ggml', 'mxfp4_ggml']
"""

from fp4lab.compat.table import TABLE, Row, get, tools
from fp4lab.compat.words import differences

__all__ = ["TABLE", "Row", "differences", "get", "tools"]
