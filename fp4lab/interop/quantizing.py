"""Quantize the weights of a model into the layout of a tool, one tensor at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat, Direction, Level
from fp4lab.functional.arguments import as_format
from fp4lab.interop import layouts, output
from fp4lab.interop.checkpoint import Checkpoint
from fp4lab.interop.choices import foreign, fused, reasons
from fp4lab.interop.chunks import Figures, largest, quantized
from fp4lab.interop.entries import Entry
from fp4lab.interop.layouts import Layout, LayoutName
from fp4lab.interop.output import Form, Plan
from fp4lab.interop.sink import Sink
from fp4lab.interop.sources import Source, open_source
from fp4lab.interop.stored import LARGEST, smallest_amax
from fp4lab.progress import Advance, silent
from fp4lab.specs.figures import as_plain
from fp4lab.specs.paths import as_path


@dataclass(frozen=True)
class Row:
    """What became of one tensor.

    Attributes:
        name, dtype, shape: as in the source.
        nbytes_before, nbytes_after: in the source and in the output.
        kept: why it was not quantized; "" where it was.
        sqnr_db: of what was quantized; infinite where nothing moved, None where it was kept.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes_before: int
    nbytes_after: int
    kept: str = ""
    sqnr_db: float | None = None


@dataclass(frozen=True)
class Summary:
    """What `quantize` did, tensor by tensor.

    Attributes:
        layout: which tool's files were written.
        rows: in the order of the source.
        sqnr_db: of all quantized values together.
        groups: names of tensors that share a tensor scale.
    """

    layout: LayoutName
    rows: tuple[Row, ...]
    sqnr_db: float
    groups: tuple[tuple[str, ...], ...]

    @property
    def num_quantized(self) -> int:
        """How many tensors were quantized."""
        return sum(not row.kept for row in self.rows)

    @property
    def dtype_note(self) -> str:
        """How to load what was written, where transformers' own choice would fail; "" else."""
        kept = {row.dtype for row in self.rows if row.kept} & {"F32", "F64", "F16"}
        if self.layout != "compressed-tensors" or not kept:
            return ""
        return (
            f"what is kept is {' and '.join(sorted(kept))}, and compressed-tensors decodes weights "
            "to bfloat16: load the model with dtype=torch.bfloat16"
        )

    @property
    def nbytes_before(self) -> int:
        """Bytes of all tensors in the source."""
        return sum(row.nbytes_before for row in self.rows)

    @property
    def nbytes_after(self) -> int:
        """Bytes of all tensors in the output."""
        return sum(row.nbytes_after for row in self.rows)

    def plain(self) -> dict[str, Any]:
        """Everything as JSON takes it: what is not finite is a text."""
        totals = {key: getattr(self, key) for key in ("nbytes_before", "nbytes_after")}
        table: dict[str, Any] = as_plain(self)
        return table | totals


def quantize(
    source: str | Path,
    out: str | Path,
    *,
    format: BlockFormat | str,
    layout: LayoutName,
    keep: Sequence[str] = (),
    share: bool = True,
    overwrite: bool = False,
    on_tensor: Advance = silent,
) -> Summary:
    """Quantize a model's weights, which need not fit into memory.

    Args:
        source: a safetensors file, a folder of Hugging Face, also with several, or a GGUF file.
        out: a folder for "compressed-tensors" and "modelopt", a name that ends in .gguf for "gguf",
            either a folder or a name that ends in .safetensors for "fp4lab". The other files of a
            model's folder are copied.
        format: what the weights become: one of `fp4lab.formats`, or its name.
        layout: which tool's.
        keep: patterns of names that stay as they are, with shell's wildcards, beside what always
            stays: embeddings, heads, norms, biases, routers, what is not a matrix of floats or does
            not fit the blocks.
        share: whether projections that engines fuse (q, k and v; gate and up) get one tensor scale,
            that of the largest amax among them. vLLM needs it.
        overwrite: whether a file, or a folder that was written here, may be replaced.
        on_tensor: called with the bytes and name of each tensor that is done.

    Returns:
        what became of each tensor. Weights are quantized in float32 as by `fp4lab.quantize`. Where
        a tensor is so small that the tensor scale of the layout or the format would be no normal
        number of float32, it gets the smallest amax whose scale is. Errors are those of what is
        stored. compressed-tensors decodes to bfloat16: load a model of another dtype as that.

    Raises:
        InputError: a source that cannot be read or is quantized already, NaN in a weight, a pattern
            that matches nothing, a format that the layout has no place for, an output that exists.
        OSError: something cannot be read or written; what was there before stays as it was.

    >>> import torch
    >>> from safetensors.torch import save_file
    >>> save_file({"up.weight": torch.ones(32, 64), "up.bias": torch.ones(32)}, "in.safetensors")
    >>> done = quantize("in.safetensors", "out", format="nvfp4", layout="modelopt")
    >>> [(row.name, row.kept) for row in done.rows]
    [('up.bias', 'bias'), ('up.weight', '')]
    """
    fmt = as_format(format, "format")
    how, target = layouts.get(layout), as_path("out", out)
    how.check_format(fmt)
    opened = open_source(source, argument="source")
    output.check(how.name, target, overwrite=overwrite, source=opened.path)
    checkpoint = Checkpoint(opened)
    if checkpoint.weights:
        raise InputError(
            f"source={str(source)!r} is quantized already ({checkpoint.layout}); give the weights "
            "in high precision, or move it to another layout with fp4lab.interop.write"
        )
    if other := foreign(opened.entries):
        raise InputError(
            f"source={str(source)!r} has {other!r}: it is quantized already, by a tool whose "
            "weights are not read here; give the weights in high precision"
        )
    work = _Work(opened, how, fmt, share=share, patterns=keep, on_tensor=on_tensor)
    output.write_plan(work.plan(), target, overwrite=overwrite, fill=work.fill)
    return work.summary()


class _Work:
    def __init__(
        self,
        source: Source,
        how: Layout,
        fmt: BlockFormat,
        *,
        share: bool,
        patterns: Sequence[str],
        on_tensor: Advance,
    ) -> None:
        self.source, self.how, self.fmt, self.on_tensor = source, how, fmt, on_tensor
        entries, config = source.entries, source.config
        self.why = reasons(entries, fmt, how, patterns=patterns, config=config)
        self.names = [name for name, why in self.why.items() if not why]
        self.groups = fused(self.names) if share and fmt.level == Level.TENSOR else {}
        self.amaxes: dict[str, float] = {}
        self.figures: dict[str, Figures] = {}
        if not self.names:
            raise InputError(
                f"source={str(source.path)!r} has no tensor to quantize to {fmt.name!r}: "
                f"{_most_common(self.why.values())}; give another file, format or keep"
            )

    def plan(self) -> Plan:
        weights = {name: Form(self.fmt, self.source.entries[name].shape) for name in self.names}
        kept = (self.source.entries[name] for name, why in self.why.items() if why)
        plain = [self.how.plain(entry) for entry in kept]
        return Plan(self.how, weights, plain, self.source, self.source.config)

    def fill(self, sink: Sink) -> None:
        for name, entry in self.source.entries.items():
            if self.why[name]:
                sink.copy(name, entry.chunks())
            else:
                self._quantize(sink, entry)
            self.on_tensor(entry.nbytes, name)

    def _quantize(self, sink: Sink, entry: Entry) -> None:
        name = entry.name
        amax = self._amax(entry)
        for member in self.groups.get(name, ()):
            amax = max(amax, self._amax(self.source.entries[member]))
        if self.fmt.level != Level.NONE and not self._holds_amax():
            # every direction has a 1 for the amax of a tensor of zeros
            amax = max(amax, smallest_amax(self.fmt)) if amax else self.fmt.amax_factor
        figures = self.figures[name] = Figures()
        first = True
        for q, x in quantized(self.source.tensor(entry), self.fmt, amax):
            stored = self.how.stored(name, q)
            for part, data in self.how.pieces(name, stored, first=first):
                sink.write(part, data)
            values = stored.dequantize()
            if not bool(values.isfinite().all()):
                raise InputError(
                    f"{name!r} in {entry.file} has an amax of {amax:.3g}, so large that "
                    f"{self.fmt.name} decodes to infinity; {_leave(name)}"
                )
            figures.add(x, values)
            first = False

    def _amax(self, entry: Entry) -> float:
        if entry.name not in self.amaxes:
            exact = largest(self.source.tensor(entry))
            amax = torch.tensor(exact, dtype=torch.float32).item()
            if not amax <= LARGEST:
                finite = math.isfinite(exact)
                what = "numbers beyond float32" if finite else "NaN or infinity"
                raise InputError(
                    f"{entry.name!r} in {entry.file} holds {what}; repair it, or "
                    f"{_leave(entry.name)}"
                )
            self.amaxes[entry.name] = amax
        return self.amaxes[entry.name]

    def _holds_amax(self) -> bool:
        """Whether the amax itself is stored: the scales that others store may be no number."""
        return self.how.name == "fp4lab" and self.fmt.direction == Direction.AMAX

    def summary(self) -> Summary:
        together = Figures()
        rows = []
        for name, entry in self.source.entries.items():
            why, after, sqnr = self.why[name], entry.nbytes, None
            if not why:
                after = sum(slot.nbytes for slot in self.how.slots(name, entry.shape, self.fmt))
                together.join(self.figures[name])
                sqnr = self.figures[name].error().sqnr_db
            rows.append(Row(name, entry.dtype, entry.shape, entry.nbytes, after, why, sqnr))
        groups = tuple(dict.fromkeys(self.groups.values()))
        return Summary(self.how.name, tuple(rows), together.error().sqnr_db, groups)


def _leave(name: str) -> str:
    return f"leave it as it is with keep=[{name.removesuffix('.weight')!r}]"


def _most_common(why: Collection[str]) -> str:
    return max(why, key=list(why).count) if why else "it is empty"
