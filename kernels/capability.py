"""What the operators know of GPUs: which have instructions for which formats."""

from __future__ import annotations

#: first numbers of the compute capabilities whose block-scaled FP4 instructions the operators use
BLOCK_SCALED = (10, 12)
#: the least compute capability with FP8 products, and with block-scaled ones
_FP8, _BLOCKS = (8, 9), (10, 0)


def native_formats(capability: tuple[int, int]) -> tuple[str, ...]:
    """The families of formats that a GPU of this compute capability multiplies by itself.

    FP8 from 8.9 on (Ada, Hopper), blocks of FP4, FP6 and FP8 with their scales from 10.0 on
    (Blackwell); see "Warp-level matrix instructions" and tcgen05 in NVIDIA's PTX manual.

    >>> native_formats((9, 0)), native_formats((12, 0))
    (('fp8',), ('fp8', 'mxfp8', 'mxfp6', 'mxfp4', 'nvfp4'))
    """
    if capability < _FP8:
        return ()
    return ("fp8",) if capability < _BLOCKS else ("fp8", "mxfp8", "mxfp6", "mxfp4", "nvfp4")
