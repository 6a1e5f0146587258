"""Block quantization by torch in parts that stay in the cache, for where there is no C library.

The reference walks over the whole matrix once for each of its some thirty steps. Here it is applied
to groups of rows, which give the same bits, for blocks and transforms lie within them; only the
second-level amax is found first, over all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import lcm
from typing import TypeAlias

import torch
from torch import Tensor

from fp4lab.formats import WHOLE, Level
from fp4lab.kernels.quantize import reference
from fp4lab.kernels.quantize.reference import Encoded, Quantization

Finish: TypeAlias = Callable[[Encoded, Quantization], list[Tensor]]

#: numbers in a group
GROUP = 1 << 17


def takes(asked: Quantization) -> bool:
    """Whether groups of rows are independent, and there are several."""
    rows = _rows_together(asked)
    return 0 < rows < asked.x_MK.shape[0] and asked.x_MK.numel() > GROUP


def _rows_together(asked: Quantization) -> int:
    """Stored rows of a group; 0 where a block takes all of them."""
    fmt = asked.format
    rows, columns = fmt.block or (1, 1)
    along = columns if asked.transposed else rows
    if along == WHOLE:
        return 0
    # an even number, so that no byte holds two groups' codes
    together = lcm(along, asked.hadamard_size, 2) if asked.transposed else along
    units = max(1, GROUP // max(1, together * asked.x_MK.shape[1]))
    return together * units


def _amax_in_group(asked: Quantization) -> bool:
    """Whether the second level is of stored rows, each of which lies within a group."""
    return asked.format.level == Level.ROW and not asked.transposed


def _groups(asked: Quantization, amax: Tensor | None) -> Iterator[tuple[slice, Quantization]]:
    together = _rows_together(asked)
    for start in range(0, asked.x_MK.shape[0], together):
        part = slice(start, min(start + together, asked.x_MK.shape[0]))
        noise = asked.noise
        if noise is not None:
            numbers = noise.row_ids
            if numbers is None:
                numbers = torch.arange(part.start, part.stop, device=asked.x_MK.device)
            else:
                numbers = numbers[part]
            noise = noise._replace(row_ids=numbers)
        outer = amax[part] if amax is not None and _amax_in_group(asked) else amax
        yield part, asked._replace(x_MK=asked.x_MK[part], noise=noise, amax=outer)


def _amax(asked: Quantization) -> Tensor | None:
    """The second level of the whole matrix, where its groups would not find it themselves."""
    level = asked.format.level
    if asked.amax is not None or level == Level.NONE:
        return asked.amax
    if _amax_in_group(asked):
        return None
    parts = []
    for _, group in _groups(asked, None):
        prepared = reference.prepare(group).abs()
        parts.append(prepared.amax(dim=1) if level == Level.ROW else prepared.amax().view(1))
    return torch.stack(parts).amax(dim=0)


def encoded(asked: Quantization, finish: Finish) -> list[Tensor]:
    """Apply `finish` to every group and put its results together along the stored rows.

    Args:
        asked: what `takes` has agreed to.
        finish: makes of an encoded group matrices of the operand (rows, or columns of a transposed
            operand), and last the tensor scale.
    """
    amax = _amax(asked)
    parts = [finish(reference.encoded(group), group) for _, group in _groups(asked, amax)]
    dim = 1 if asked.transposed else 0
    *matrices, outer = (list(column) for column in zip(*parts, strict=True))
    return [
        *(torch.cat(pieces, dim=dim) for pieces in matrices),
        torch.cat(outer) if _amax_in_group(asked) else outer[0],
    ]
