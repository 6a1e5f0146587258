"""The six places where a tensor enters a matrix product of a linear layer.

With X [tokens M, in K], W [out N, in K] and dY [M, N] a linear layer computes

    fprop   Y  = X W^T          a = X    [M, K]   b = W    [N, K]   along K
    dgrad   dX = dY W           a = dY   [M, N]   b = W^T  [K, N]   along N
    wgrad   dW = dY^T X         a = dY^T [N, M]   b = X^T  [K, M]   along M (the tokens)

Every operand is written with the contracted axis last.
"""

from __future__ import annotations

from dataclasses import dataclass

#: each product and what it gives
GEMMS = {"fprop": "Y", "dgrad": "dX", "wgrad": "dW"}
TENSORS = {"x": "X", "w": "W", "dy": "dY"}
#: what the rows and the columns of each tensor are
SIDES = {
    "x": ("tokens", "input features"),
    "w": ("output features", "input features"),
    "dy": ("tokens", "output features"),
}


@dataclass(frozen=True)
class Place:
    """One side of one product.

    Args:
        gemm: "fprop", "dgrad" or "wgrad".
        side: "a" or "b".
        tensor: what enters: "x", "w" or "dy".
        dim: the dimension of the stored X, W or dY that is contracted; 0: its transpose enters.
        stream: number of the rounding noise; part of the definition, never to be changed.
        forward: where fprop uses the same tensor, for a place that can take fprop's copy of it.
    """

    gemm: str
    side: str
    tensor: str
    dim: int
    stream: int
    forward: Place | None = None

    @property
    def transposed(self) -> bool:
        """Whether the transpose of the stored tensor enters."""
        return self.dim == 0

    @property
    def label(self) -> str:
        """X, W, dY, W^T, dY^T or X^T."""
        return TENSORS[self.tensor] + ("^T" if self.transposed else "")

    @property
    def sides(self) -> tuple[str, str]:
        """What rows and columns are as they enter, columns being contracted.

        >>> WGRAD_DY.label, WGRAD_DY.sides
        ('dY^T', ('output features', 'tokens'))
        """
        rows, columns = SIDES[self.tensor]
        return (columns, rows) if self.transposed else (rows, columns)

    def __str__(self) -> str:
        return f"{self.gemm}.{self.side}"


FPROP_X = Place("fprop", "a", "x", dim=1, stream=0)
FPROP_W = Place("fprop", "b", "w", dim=1, stream=1)
DGRAD_DY = Place("dgrad", "a", "dy", dim=1, stream=2)
DGRAD_W = Place("dgrad", "b", "w", dim=0, stream=3, forward=FPROP_W)
WGRAD_DY = Place("wgrad", "a", "dy", dim=0, stream=4)
WGRAD_X = Place("wgrad", "b", "x", dim=0, stream=5, forward=FPROP_X)

PLACES = (FPROP_X, FPROP_W, DGRAD_DY, DGRAD_W, WGRAD_DY, WGRAD_X)
