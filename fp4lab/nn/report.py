"""What a conversion did, layer by layer, and why not elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from html import escape
from typing import Literal, TypeAlias

from fp4lab.recipes.operands import LinearRecipe
from fp4lab.recipes.tables import html_table, text_table

#: converted, updated: computes with `numerics` now; left alone: a rule says so; unreachable: a
#: linear layer that a swap does not reach; not quantized: a module with matrices of its own
Action: TypeAlias = Literal["converted", "updated", "left alone", "unreachable", "not quantized"]

_HEADER = ("name", "kind", "action", "numerics", "reason")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One module: its dotted name and class, what was done, with which numerics, and why.

    `linear` is None for what keeps its own arithmetic, `block` for what is in no block list.

    >>> import fp4lab, torch
    >>> model = torch.nn.ModuleDict({"up": torch.nn.Linear(16, 16), "head": torch.nn.Linear(16, 2)})
    >>> head = fp4lab.convert(model, fp4lab.recipes.get("nvfp4")).rows[1]
    >>> head.action, head.numerics
    ('converted', 'bf16 everywhere')
    """

    name: str
    kind: str
    action: Action
    numerics: str = ""
    reason: str = ""
    linear: LinearRecipe | None = None
    block: int | None = None


@dataclass(frozen=True)
class ConversionReport:
    """Every linear layer and every other module with a matrix of its own, in the model's order.

    It prints as a table in which the blocks of a model that fare alike share a line.

    >>> import fp4lab, torch
    >>> blocks = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(4))
    >>> print(fp4lab.convert(blocks, fp4lab.recipes.get("nvfp4_last1")))
    recipe nvfp4_last1: 4 converted
    name  kind    action     numerics         reason
    ----  ------  ---------  ---------------  --------------------
    0-2   Linear  converted  nvfp4_last1      the recipe's default
    3     Linear  converted  bf16 everywhere  rule '*' in last 1
    """

    recipe: str
    rows: tuple[Row, ...]

    def names(self, action: Action) -> tuple[str, ...]:
        """Names of the modules with which this was done."""
        return tuple(row.name for row in self.rows if row.action == action)

    def names_joined(self, action: Action) -> tuple[str, ...]:
        """The same as the table writes them, blocks that fare alike in one: `blocks.0-3.up`."""
        return tuple(cells[0] for cells in _cells(row for row in self.rows if row.action == action))

    @property
    def summary(self) -> str:
        """One line of counts."""
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.action] = counts.get(row.action, 0) + 1
        differ = sum(row.linear is not None and row.linear.weights_differ for row in self.rows)
        note = f"; in {differ} dgrad rounds W anew, along another axis than fprop" if differ else ""
        parts = ", ".join(f"{n} {action}" for action, n in counts.items())
        return f"recipe {self.recipe}: {parts}{note}"

    def __str__(self) -> str:
        return f"{self.summary}\n{text_table(_HEADER, _cells(self.rows))}"

    # what a prompt shows; the fields of all rows would fill the screen
    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary)}</p>{html_table(_HEADER, _cells(self.rows))}"


def _cells(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """Rows as text; names that differ only in the block's number are joined, `blocks.0-3,7.up`."""
    groups: dict[Row, list[int]] = {}
    for row in rows:
        pattern = _without_block(row)
        groups.setdefault(pattern, []).extend([] if row.block is None else [row.block])
    return [
        (
            row.name.format(_ranges(blocks)) or "(the model)",
            row.kind,
            row.action,
            row.numerics,
            row.reason,
        )
        for row, blocks in groups.items()
    ]


def _without_block(row: Row) -> Row:
    name = row.name.replace("{", "{{").replace("}", "}}")
    parts = name.split(".")
    if str(row.block) not in parts:  # a part of a model keeps the names of the whole
        return replace(row, name=name, block=None)
    parts[parts.index(str(row.block))] = "{}"
    return replace(row, name=".".join(parts), block=None)


def _ranges(numbers: list[int]) -> str:
    """0, 1, 2, 5 -> "0-2,5" (ascending input)."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
