"""What a format does to each tensor of a file, or what the file's quantized tensors are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from fp4lab.errors import InputError, unknown
from fp4lab.formats import BlockFormat, Level
from fp4lab.functional import Error
from fp4lab.functional.arguments import as_format
from fp4lab.interop.checkpoint import Checkpoint, Weight, read
from fp4lab.interop.chunks import error_of, spread
from fp4lab.interop.entries import Entry
from fp4lab.progress import Advance, silent
from fp4lab.specs.figures import as_plain
from fp4lab.tensor import QuantizedTensor

SortKey: TypeAlias = Literal[
    "sqnr", "amax", "amax_over_rms", "kurtosis", "underflow", "saturation", "name", "file"
]
SORT_KEYS: tuple[SortKey, ...] = get_args(SortKey)


@dataclass(frozen=True)
class TensorRow:
    """A tensor in high precision: its values, and the error of each format.

    Attributes:
        name, dtype, shape: as in the file.
        amax: largest magnitude.
        amax_over_rms: the same over the root mean square.
        kurtosis: of the values, 3 for a Gaussian.
        errors: by the name of the format; incomplete blocks are padded with zeros.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    amax: float
    amax_over_rms: float
    kurtosis: float
    errors: dict[str, Error]


@dataclass(frozen=True)
class WeightRow:
    """A tensor that is quantized in the file.

    Attributes:
        name, shape: of the weight.
        format: of what `read` gives.
        direction: which number the tensor scale is: "amax", "encode", "decode", "" without one.
        tensor_scale: the number; None where there is one a row, or none.
        nbytes: of all its parts.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    direction: str
    tensor_scale: float | None
    nbytes: int


@dataclass(frozen=True)
class Inspection:
    """What was found in a file.

    Attributes:
        path: the file or folder.
        layout: of its quantized tensors; None where nothing is quantized.
        rows: tensors in high precision with the errors of formats, in the order that was asked for.
        weights: tensors that are quantized already.
        skipped: tensors that hold no floats, or nothing, with their dtype.
    """

    path: str
    layout: str | None
    rows: tuple[TensorRow, ...]
    weights: tuple[WeightRow, ...]
    skipped: dict[str, str]

    def plain(self) -> dict[str, Any]:
        """Everything as JSON takes it: what is not finite is a text."""
        table: dict[str, Any] = as_plain(self)
        return table


def inspect(
    path: str | Path,
    formats: Sequence[BlockFormat | str] = (),
    *,
    sort: SortKey = "sqnr",
    on_tensor: Advance = silent,
) -> Inspection:
    """Measure what formats do to each tensor of a file, which need not fit into memory.

    Args:
        path: as in `read`.
        formats: any number of `fp4lab.formats`, or their names; a file that is not
            quantized needs at least one.
        sort: order of the rows, worst first: by the first format's "sqnr", "underflow" or
            "saturation", by "amax", "amax_over_rms" or "kurtosis", by "name", or as in the "file".
        on_tensor: called with the bytes and name of each tensor that is done.

    Returns:
        the rows. Errors are those of `fp4lab.error` on the values in float32.

    Raises:
        InputError: as `read`, another `sort`, or no format for a file that is not quantized.

    >>> import torch
    >>> from safetensors.torch import save_file
    >>> save_file({"up.weight": torch.ones(32, 64)}, "model.safetensors")
    >>> row = inspect("model.safetensors", ["nvfp4"]).rows[0]
    >>> row.amax_over_rms, row.errors["nvfp4"].sqnr_db
    (1.0, inf)
    """
    if sort not in SORT_KEYS:
        raise unknown("sort", sort, SORT_KEYS)
    if isinstance(formats, str):
        raise InputError(f"formats={formats!r} is not a list; give [{formats!r}]")
    chosen = [as_format(fmt, "formats") for fmt in formats]
    # the numbers are shown as they are
    checkpoint = read(path, check_scales=False)
    if not chosen and not checkpoint.weights:
        raise InputError(
            f"path={str(path)!r} is not quantized; add a format, such as formats=['nvfp4']"
        )
    weights = tuple(_weight(checkpoint, name, w) for name, w in checkpoint.weights.items())
    rows, skipped = [], {}
    for name, entry in checkpoint.plain.items():
        if not entry.has_values or entry.nbytes == 0:
            skipped[name] = entry.dtype
        elif chosen:
            rows.append(_row(checkpoint, entry, chosen))
            on_tensor(entry.nbytes, name)
    rows.sort(key=_order(sort, chosen))
    return Inspection(str(path), checkpoint.layout, tuple(rows), weights, skipped)


def _row(checkpoint: Checkpoint, entry: Entry, formats: Sequence[BlockFormat]) -> TensorRow:
    x = checkpoint.source.tensor(entry)
    x = x.reshape(1) if x.dim() == 0 else x
    values = spread(x)
    errors = {fmt.name: error_of(x, fmt, values.amax) for fmt in formats}
    figures = (values.amax, values.amax_over_rms, values.kurtosis)
    return TensorRow(entry.name, entry.dtype, entry.shape, *figures, errors)


def _weight(checkpoint: Checkpoint, name: str, weight: Weight) -> WeightRow:
    fmt, scale = weight.format, None
    if fmt.level == Level.TENSOR:
        q = checkpoint[name]
        assert isinstance(q, QuantizedTensor)
        scale = q.tensor_scale.item()
    direction = "" if fmt.level == Level.NONE else fmt.direction.name.lower()
    return WeightRow(name, weight.shape, fmt.name, direction, scale, weight.nbytes)


def _order(sort: SortKey, formats: Sequence[BlockFormat]) -> Any:
    """The key of a sort that puts the worst first, and what is no number before it."""

    def key(row: TensorRow) -> tuple[float, str]:
        if sort == "name":
            return 0.0, row.name
        if sort in ("amax", "amax_over_rms", "kurtosis"):
            value = -getattr(row, sort)
        else:
            error = row.errors[formats[0].name]
            value = error.sqnr_db if sort == "sqnr" else -getattr(error, sort)
        return (-math.inf if math.isnan(value) else value), row.name

    return (lambda row: 0) if sort == "file" else key
