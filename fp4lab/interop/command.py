"""`fp4lab quantize` and `fp4lab inspect`: their options, and what they print."""

from __future__ import annotations

import json as json_text
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from tyro.conf import Positional, UseAppendAction, arg

from fp4lab.interop import atomic, inspecting, progress, quantizing, tables
from fp4lab.interop.inspecting import SortKey
from fp4lab.interop.layouts import LayoutName
from fp4lab.interop.sources import open_source
from fp4lab.specs.options import Unset

#: may be given several times
Repeated: TypeAlias = Annotated[
    UseAppendAction[tuple[str, ...]], arg(help_behavior_hint="(repeatable)")
]


@dataclass(frozen=True, kw_only=True)
class QuantizeArguments:
    """Quantize a model's weights into the layout of a tool, tensor by tensor.

    Embeddings, heads, norms, biases, routers and what does not fit the blocks stay as they are. The
    output is there only when it is whole. compressed-tensors decodes weights to bfloat16: load a model
    of another dtype with dtype=torch.bfloat16.
    """

    source: Annotated[Positional[Path], arg(metavar="IN")]
    """A safetensors file, a folder of a Hugging Face model, or a .gguf file."""
    out: Annotated[Positional[Path], arg(metavar="OUT")]
    """A folder; a .gguf file for --layout gguf; a folder or .safetensors file for fp4lab."""
    format: str
    """What the weights become, such as nvfp4, nvfp4_4over6, nvfp4_modelopt, mxfp4, mxfp8_e4m3."""
    layout: LayoutName
    """Which tool's files are written."""
    keep: Repeated = ()
    """Names that stay as they are, with shell's wildcards: --keep '*.down_proj'."""
    share: bool = True
    """One tensor scale for projections that engines fuse: q, k, v; gate, up. vLLM needs it."""
    overwrite: bool = False
    """Replace a file, or a folder that this command has written."""
    json: Unset[Path] = None
    """File for what became of each tensor; - prints it instead of the summary."""


@dataclass(frozen=True, kw_only=True)
class InspectArguments:
    """Show what formats do to each tensor of a file, or what is quantized in it already."""

    path: Annotated[Positional[Path], arg(metavar="PATH")]
    """A safetensors file, a folder of a Hugging Face model, or a .gguf file."""
    format: Repeated = ()
    """Formats to measure, such as nvfp4 or nvfp4,mxfp4; needed where nothing is quantized yet."""
    sort: SortKey = "sqnr"
    """Order of the rows, the worst first: by the first format's figures, or those of the values."""
    json: Unset[Path] = None
    """File for the figures; - prints them instead of the tables."""


def quantize(given: QuantizeArguments) -> int:
    """Quantize, and print the summary."""
    total = open_source(given.source, argument="source").nbytes
    try:
        with progress.shown("quantize", total) as on_tensor:
            summary = quantizing.quantize(
                given.source,
                given.out,
                format=given.format,
                layout=given.layout,
                keep=given.keep,
                share=given.share,
                overwrite=given.overwrite,
                on_tensor=on_tensor,
            )
    except KeyboardInterrupt:
        print(f"fp4lab: interrupted; {given.out} is as it was", file=sys.stderr)
        raise
    if _printed(summary.plain(), given.json):
        tables.show_summary(summary, str(given.out))
    return 0


def inspect(given: InspectArguments) -> int:
    """Measure, and print the tables."""
    words = (word.strip() for given_once in given.format for word in given_once.split(","))
    chosen = list(dict.fromkeys(word for word in words if word))
    total = open_source(given.path).nbytes
    with progress.shown("inspect", total) as on_tensor:
        found = inspecting.inspect(given.path, chosen, sort=given.sort, on_tensor=on_tensor)
    if _printed(found.plain(), given.json):
        tables.show_inspection(found)
    return 0


def _printed(value: object, path: Path | None) -> bool:
    """Write the figures where they are asked for; whether the tables are to be printed too."""
    if path is None:
        return True
    text = json_text.dumps(value, indent=2, allow_nan=False)
    if str(path) == "-":
        print(text)
        return False
    with atomic.replacing(path, folder=False, overwrite=True, ours=bool) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    return True
