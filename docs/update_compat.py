"""Writes docs/compat.md from `fp4lab.compat` and the recorded arrays.

Run from the project's root: `python -m docs.update_compat`. It compares every recorded array again
(some seconds) and counts what matches; a test holds that the page is up to date. Left out: prose
that is not in the table or derived from a format.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fp4lab import compat
from fp4lab.compat import words
from fp4lab.formats import BlockFormat
from tests.golden import arrays, catalogue, count

PAGE = Path(__file__).parent / "compat.md"
HEAD = """# Other tools, bit for bit

Tools that quantize to NVFP4 or MX disagree: in the order of operations, in what they store, in
what they make of zeros and halves. fp4lab has a format for each of them that gives the same bytes,
proven on arrays that the tools computed (`tests/golden`). `fp4lab.compat` holds this page as data;
the page is written by `python -m docs.update_compat`.

```python
import torch
import fp4lab
from fp4lab import compat, formats

weight = torch.randn(64, 128)
q = fp4lab.quantize(weight, formats.NVFP4_COMPRESSED_TENSORS)
print(q.tensor_scale, q.format.direction.name)  # the global scale, ENCODE
print(compat.get("compressed-tensors")[0].differences)  # from Transformer Engine
```
"""
DISAGREE = """## How they disagree

Every cell is read off the fields of a format. Letters as in `fp4lab.formats.scaling`: a is the
largest magnitude of a block, A that of the tensor, s a block scale, M the element that a maps to, C
the block scale that A maps to, S = C M / A, D = 1 / S (or as stored), x an element. "zero block"
and "zero tensor" are the scale bytes of zeros beside other numbers, and of nothing but zeros;
"zeros" the codes of -0, 0 and a small negative number (8: the sign bit).
"""
GOLDEN = """## What the arrays prove

`arrays` of a file; `matched` to the last byte, by the C version or torch and by the reference, of
which `partly` leaves named elements out; `not applicable` are compared with nothing. Recorded NaNs
may have another payload.
"""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    names = list(head)
    lines = [names, ["---"] * len(names), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def keys(row: compat.Row) -> list[str]:
    """The recorded arrays that prove a row."""
    file = row.golden.removesuffix(".npz")
    found = (key for key in arrays.load(file) if re.fullmatch(row.pattern, key))
    return [key for key in found if catalogue.reason_not(file, key) is None]


def proven() -> str:
    """What each tool's rows stand for, and on how many arrays."""
    head = ("tool", "version", "what", "format", "proven on", "arrays")
    rows = (
        (
            row.tool,
            row.version,
            row.what,
            f"`{row.format.name}`",
            f"`{row.golden}`",
            str(len(keys(row))),
        )
        for row in compat.TABLE
    )
    return table(head, rows)


def stored() -> str:
    """The tools' names of the numbers they store."""
    names: dict[str, tuple[tuple[str, str, str], str]] = {}
    for row in compat.TABLE:
        # a row with two levels says more than one with one
        if any(row.stored) and (row.tool not in names or not names[row.tool][0][2]):
            names[row.tool] = (row.stored, words.second_level(row.format))
    rows = (
        (tool, *(f"`{part}`" if part else "-" for part in parts), second)
        for tool, (parts, second) in names.items()
    )
    return table(("tool", "codes", "block scales", "tensor scale", "which is"), rows)


ASKS: dict[str, Callable[[BlockFormat], str]] = {
    "order": words.order,
    "stores": words.second_level,
    "scale": words.choice,
    "C": words.aim,
    "M": words.target,
    "zero block": words.zero_block,
    "zero tensor": words.zero_tensor,
    "least scale": words.smallest_scale,
    "halves go": words.halves,
    "zeros": words.negative_zero,
}


def disagreement() -> str:
    """One row for each set of answers, with the formats that give it."""
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for fmt in dict.fromkeys(row.format for row in compat.TABLE):
        alike[tuple(ask(fmt) for ask in ASKS.values())].append(f"`{fmt.name}`")
    rows = ((", ".join(names), *answers) for answers, names in alike.items())
    return table(("format", *ASKS), rows)


def differences() -> str:
    """For each row, in words."""
    return "\n".join(
        f"- {row.tool}, {row.what} (`{row.format.name}`): {'; '.join(row.differences)}"
        for row in compat.TABLE
        if row.differences
    )


def limits() -> str:
    """What no format reproduces, with the rows that it is true of."""
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in compat.TABLE:
        if row.limits:
            rows[row.tool, row.limits].append(row.what)
    return "\n".join(f"- {tool} ({'; '.join(what)}): {text}" for (tool, text), what in rows.items())


def counted(counts: dict[str, dict[str, Any]]) -> str:
    """For each file of arrays, and the reasons for what is left out."""
    columns = [column for column in count.COLUMNS if column not in ("payload", "different")]
    rows = [
        (f"`{file}.npz`", *(str(figures[column]) for column in columns))
        for file, figures in counts.items()
    ]
    lines = [table(("file", *columns), rows), ""]
    for file, figures in counts.items():
        lines += [f"- `{file}`: {n} arrays: {why}" for why, n in figures["reasons"].items()]
        lines += [
            f"- `{file}`: {n} elements: {why}" for why, n in figures["elements left out"].items()
        ]
    return "\n".join(lines)


def sections() -> list[str]:
    """All but the counts, which take some seconds."""
    return [
        HEAD,
        "## Formats\n\n" + proven(),
        "## What the numbers are called\n\n" + stored(),
        DISAGREE + "\n" + disagreement(),
        "## Differences from Transformer Engine\n\n" + differences(),
        "## What is not reproduced\n\n" + limits(),
    ]


def page() -> str:
    """The whole page."""
    counts = {file: count.count(file) for file in catalogue.FILES if file != "inputs"}
    return "\n\n".join([*map(str.strip, sections()), GOLDEN.strip(), counted(counts)]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
