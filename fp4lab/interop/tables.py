"""What `fp4lab quantize` and `fp4lab inspect` print."""

from __future__ import annotations

import math
from collections import Counter

from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from fp4lab.interop.inspecting import Inspection
from fp4lab.interop.quantizing import Summary

#: wide enough for any table
WIDEST = 10_000
#: names that are told of what was kept for one reason
FEW = 3


def show_summary(summary: Summary, where: str) -> None:
    """What was quantized, what was kept and why, sizes and error."""
    worst = sorted(
        (row for row in summary.rows if row.sqnr_db is not None),
        key=lambda row: (row.sqnr_db, row.name),
    )[:FEW]
    print(f"quantized {summary.num_quantized} of {len(summary.rows)} tensors into {where}")
    before, after = summary.nbytes_before, summary.nbytes_after
    print(f"size: {megabytes(before)} before, {megabytes(after)} after ({before / after:.2f}x)")
    print(f"SQNR of what was quantized: {decibels(summary.sqnr_db)}; lowest:")
    for row in worst:
        print(f"  {decibels(row.sqnr_db)}  {row.name}")
    if summary.groups:
        print(f"tensor scales shared in {len(summary.groups)} groups, such as:")
        print(f"  {', '.join(summary.groups[0])}")
    reasons = Counter(row.kept for row in summary.rows if row.kept)
    if reasons:
        print("kept:")
    for reason, count in reasons.most_common():
        names = [row.name for row in summary.rows if row.kept == reason]
        more = "" if count <= FEW else f" and {count - FEW} more"
        print(f"  {reason}: {', '.join(names[:FEW])}{more}")
    if summary.dtype_note:
        print(f"note: {summary.dtype_note}")


def show_inspection(found: Inspection) -> None:
    """The tables; no number is cut off on a narrow terminal."""
    tables = [_weights(found)] if found.weights else []
    tables += [_errors(found)] if found.rows else []
    console = Console()
    measuring = Console(width=WIDEST)
    console.width = max([console.width, *(measuring.measure(t).maximum for t in tables)])
    for table in tables:
        console.print(table)
    lines = []
    if found.weights:
        kinds = Counter((w.format, w.direction) for w in found.weights)
        told = ", ".join(
            f"{count} {fmt}{f' (tensor scale: {way})' if way else ''}"
            for (fmt, way), count in sorted(kinds.items())
        )
        size = megabytes(sum(weight.nbytes for weight in found.weights))
        lines.append(f"layout {found.layout}: {told}, {size}")
    if found.skipped:
        kinds_ = ", ".join(f"{n} {dtype}" for dtype, n in Counter(found.skipped.values()).items())
        lines.append(f"not measured, for they hold no floats, or nothing: {kinds_}")
    for line in lines:
        console.print(line, highlight=False, markup=False)


def _weights(found: Inspection) -> Table:
    table = _table("quantized in the file", ("tensor", "shape", "format", "tensor scale", "value"))
    for row in found.weights:
        value = "" if row.tensor_scale is None else f"{row.tensor_scale:.6g}"
        table.add_row(Text(row.name), sizes(row.shape), row.format, row.direction, value)
    return table


def _errors(found: Inspection) -> Table:
    names = list(found.rows[0].errors)
    columns = ["tensor", "shape", "dtype", "amax", "amax/rms", "kurtosis"]
    for name in names:
        columns += [f"{name} SQNR", "underflow", "saturation"]
    table = _table("in high precision", tuple(columns))
    for row in found.rows:
        spread = (number(row.amax), number(row.amax_over_rms), number(row.kurtosis))
        cells: list[str | Text] = [Text(row.name), sizes(row.shape), row.dtype, *spread]
        for name in names:
            error = row.errors[name]
            parts = (percent(error.underflow), percent(error.saturation))
            cells += [decibels(error.sqnr_db), *parts]
        table.add_row(*cells)
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        left = column in ("tensor", "shape", "dtype", "format", "tensor scale")
        justify: JustifyMethod = "left" if left else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    return table


def sizes(shape: tuple[int, ...]) -> str:
    """Sizes with an x between; a single number is "1".

    >>> sizes((3, 4)), sizes(())
    ('3x4', '1')
    """
    return "x".join(map(str, shape)) or "1"


def decibels(value: float | None) -> str:
    """An SQNR, in words where there is no error."""
    if value is None or math.isnan(value):
        return "NaN"
    return "exact" if value == math.inf else f"{value:.2f} dB"


def number(value: float) -> str:
    """A figure with four digits."""
    return f"{value:.4g}"


def percent(fraction: float) -> str:
    """A fraction; what is there but would round to nothing is told as such.

    >>> percent(0.0), percent(0.0000001), percent(0.25)
    ('0', '<0.001%', '25.000%')
    """
    if fraction == 0:
        return "0"
    return "<0.001%" if fraction < 5e-6 else f"{fraction:.3%}"


def megabytes(nbytes: int) -> str:
    """A size in MB (10^6 bytes).

    >>> megabytes(1_500_000)
    '1.50 MB'
    """
    return f"{nbytes / 1e6:,.2f} MB"
