"""`fp4lab quantize` and `fp4lab inspect`: their options, and what they print."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGHUP, SIGTERM
from types import FrameType
from typing import Annotated, TypeAlias

from tyro.conf import FlagCreatePairsOff, Positional, UseAppendAction, arg

from fp4lab import progress
from fp4lab.errors import InputError
from fp4lab.interop import atomic, inspecting, quantizing, tables
from fp4lab.interop.inspecting import SortKey
from fp4lab.interop.layouts import LayoutName
from fp4lab.interop.sources import open_source, read_json
from fp4lab.specs.figures import STDOUT, put_json
from fp4lab.specs.options import Unset
from fp4lab.specs.paths import as_path

#: may be given several times
Repeated: TypeAlias = Annotated[
    UseAppendAction[tuple[str, ...]], arg(help_behavior_hint="(repeatable)")
]


@dataclass(frozen=True, kw_only=True)
class QuantizeArguments:
    """Quantize a model's weights into the layout of a tool, tensor by tensor.

    Embeddings, heads, norms, biases, routers and what does not fit the blocks stay as they are. The
    output is there only when it is whole. compressed-tensors decodes weights to
    bfloat16: load a model of another dtype with dtype=torch.bfloat16.
    """

    source: Annotated[Positional[str], arg(metavar="IN")]
    """A safetensors file, a folder of a Hugging Face model, or a .gguf file."""
    out: Annotated[Positional[str], arg(metavar="OUT")]
    """A folder; a .gguf file for --layout gguf; a folder or .safetensors file for fp4lab."""
    format: str
    """What the weights become, such as nvfp4, nvfp4_4over6, nvfp4_modelopt, mxfp4, mxfp8_e4m3."""
    layout: LayoutName
    """Which tool's files are written."""
    keep: Repeated = ()
    """Names that stay as they are, with shell's wildcards: --keep '*.down_proj'."""
    share: bool = True
    """One tensor scale for projections that engines fuse: q, k, v; gate, up. vLLM needs it."""
    overwrite: FlagCreatePairsOff[bool] = False
    """Replace a file, or a folder that this command has written."""
    json: Annotated[Unset[str], arg(metavar="PATH")] = None
    """File for what became of each tensor; - prints it instead of the summary."""


@dataclass(frozen=True, kw_only=True)
class InspectArguments:
    """Show what formats do to each tensor of a file, or what is quantized in it already."""

    path: Annotated[Positional[str], arg(metavar="PATH")]
    """A safetensors file, a folder of a Hugging Face model, or a .gguf file."""
    format: Repeated = ()
    """Formats to measure, such as nvfp4 or nvfp4,mxfp4; needed where nothing is quantized yet."""
    sort: SortKey = "sqnr"
    """Order of the rows, the worst first: by the first format's figures, or those of the values."""
    json: Annotated[Unset[str], arg(metavar="PATH")] = None
    """File for the figures; - prints them instead of the tables."""


def quantize(given: QuantizeArguments) -> int:
    """Quantize, and print the summary."""
    try:
        with _ended_cleanly(given.out):
            total = open_source(given.source, argument="source").nbytes
            _check_json(given.json, given.source, out=as_path("out", given.out))
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
        tables.show_summary(summary, given.out)
    return 0


def inspect(given: InspectArguments) -> int:
    """Measure, and print the tables."""
    words = (word.strip() for given_once in given.format for word in given_once.split(","))
    chosen = list(dict.fromkeys(word for word in words if word))
    total = open_source(given.path).nbytes
    _check_json(given.json, given.path)
    with progress.shown("inspect", total) as on_tensor:
        found = inspecting.inspect(given.path, chosen, sort=given.sort, on_tensor=on_tensor)
    if _printed(found.plain(), given.json):
        tables.show_inspection(found)
    return 0


@contextmanager
def _ended_cleanly(out: str) -> Iterator[None]:
    """Let what a batch system or a closed terminal ends delete what it has half written."""

    def end(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        print(f"fp4lab: ended by {name}; {out} is as it was", file=sys.stderr)
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # one that is ignored, as under nohup, stays so
    numbers = [n for n in (SIGTERM, SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _check_json(given: str | None, source: str, *, out: Path | None = None) -> None:
    """InputError for a place of the figures where they cannot be, or something else is."""
    if given is None or Path(given) == STDOUT:
        return
    path, shown = as_path("json", given), f"json={given!r}"
    atomic.check_target(path, folder=False, overwrite=True, foreign=str, argument="json")
    real = path.resolve()
    if out is not None and (real == out.resolve() or out.resolve() in real.parents):
        raise InputError(f"{shown} lies in the output {str(out)!r}; give another place")
    if real == Path(source).resolve() or (path.exists() and not _holds_figures(path)):
        raise InputError(
            f"{shown} is there, and holds no figures of this command; give the name of a new file"
        )


def _holds_figures(path: Path) -> bool:
    """Whether a file is one of those that are written here, or empty."""
    try:
        return path.stat().st_size == 0 or "rows" in read_json(path)
    except InputError:
        return False


def _printed(value: object, given: str | None) -> bool:
    """Write the figures where they are asked for; whether the tables are to be printed too."""
    if given is None:
        return True
    put_json(Path(given), value)
    return Path(given) != STDOUT
