"""Write quantized tensors for other tools."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fp4lab.errors import InputError, expect
from fp4lab.interop import layouts, output
from fp4lab.interop.checkpoint import Checkpoint
from fp4lab.interop.configs import carried, check_moved, have_inputs, input_scale_name
from fp4lab.interop.entries import Slot, misleads
from fp4lab.interop.layouts import Layout, LayoutName, plain_slot
from fp4lab.interop.output import Form, Plan
from fp4lab.interop.sink import Sink, bytes_of
from fp4lab.interop.sources import check_config
from fp4lab.specs.paths import as_path
from fp4lab.tensor import QuantizedTensor
from fp4lab.tensor.files import check_savable

#: what writes the bytes of a plain tensor
Copy = Callable[[Sink], None]


def write(
    tensors: Mapping[str, QuantizedTensor | Tensor],
    path: str | Path,
    *,
    layout: LayoutName,
    config: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write tensors in the layout of a tool, in place of an older file only when all is written.

    Args:
        tensors: a dictionary, or a `Checkpoint`, whose tensors are then read one at a time, and
            whose other files (tokenizer, configuration) go along.
        path: a folder for "compressed-tensors" and "modelopt", a name that ends in .gguf for
            "gguf"; either a folder or a name that ends in .safetensors for "fp4lab".
        layout: which tool's.
        config: what config.json says of the model; that of a `Checkpoint` by default.
        overwrite: whether a file, or a folder that was written here, may be replaced.

    Codes and block scales are written as they are. A tensor scale is converted to the direction of
    the layout by one float32 division, and is 1 for a tensor of zeros.

    Raises:
        InputError: a format, shape, name or dtype that the layout has no place for; NaN; a target
            that is there already.
        OSError: it cannot be written.

    >>> import fp4lab
    >>> from fp4lab import formats
    >>> q = fp4lab.quantize(torch.ones(16, 32), formats.NVFP4)
    >>> write({"up.weight": q, "up.bias": torch.zeros(16)}, "model", layout="modelopt")
    >>> sorted(path.name for path in Path("model").iterdir())
    ['config.json', 'hf_quant_config.json', 'model.safetensors']
    """
    expect("tensors", tensors, Mapping, "give a dictionary, such as {'up.weight': q}")
    how, target = layouts.get(layout), as_path("path", path)
    _check_config(config)
    opened = tensors if isinstance(tensors, Checkpoint) else None
    source = None if opened is None else opened.source
    origin = None if source is None else source.path
    output.check(how.name, target, overwrite=overwrite, source=origin)
    if opened is None:
        for name, value in tensors.items():
            check_savable(name, value)
            if misleads(name):
                raise InputError(
                    f"tensors has the name {name[:80]!r}, which is empty, or has control "
                    "characters or the form of a path, and is refused by read; rename it"
                )
    weights = _forms(tensors)
    for name, form in weights.items():
        _check(how, name, form)
    plain = _plain(tensors, how, set(weights))
    kept: Mapping[str, dict[str, Any]] = {}
    if opened is not None and opened.layout is not None:
        if opened.layout != how.name:
            inputs = have_inputs(how.name, weights, [slot.name for slot, _ in plain])
            check_moved(opened.source, how.name, inputs=inputs)
        elif config is None:
            kept = carried(opened.source)
    if config is None:
        config = {} if source is None else source.config
    plan = Plan(how, weights, [slot for slot, _ in plain], source, config, kept)

    def fill(sink: Sink) -> None:
        for name in weights:
            q = tensors[name]
            assert isinstance(q, QuantizedTensor)
            for part, data in how.pieces(name, how.stored(name, q), first=True):
                sink.write(part, data)
        for _, copy in plain:
            copy(sink)

    output.write_plan(plan, target, overwrite=overwrite, fill=fill)


def _check_config(config: object) -> None:
    """InputError for a configuration that is none of a model, or cannot be stored."""
    expect("config", config, Mapping, "give what config.json holds", optional=True)
    if config is None:
        return
    assert isinstance(config, Mapping)
    try:
        json.dumps(dict(config)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"config cannot be stored as JSON: {error}; change it") from None
    check_config(config, "config")


def _forms(tensors: Mapping[str, QuantizedTensor | Tensor]) -> dict[str, Form]:
    if isinstance(tensors, Checkpoint):
        return {name: weight.form for name, weight in tensors.weights.items()}
    return {
        name: Form(q.format, tuple(q.shape), q.axis, q.transform)
        for name, q in tensors.items()
        if isinstance(q, QuantizedTensor)
    }


def _check(how: Layout, name: str, form: Form) -> None:
    """InputError for a quantized tensor that has no place in the layout."""
    how.check_format(form.format)
    if how.name == "fp4lab":
        return
    if form.axis != -1 or form.transform:
        raise InputError(
            f"{name!r} has blocks along dim -2, or is transformed, which {how.name} does not know; "
            "quantize it along dim -1 without a transform, or use layout='fp4lab'"
        )
    if why := how.refusal(name, form.shape, form.format):
        raise InputError(
            f"{name!r} cannot be stored as {how.name}: {why}; leave it in high precision"
        )


def _plain(
    tensors: Mapping[str, QuantizedTensor | Tensor], how: Layout, weights: set[str]
) -> list[tuple[Slot, Copy]]:
    """The places of what is not quantized, and what fills them."""
    opened = isinstance(tensors, Checkpoint)
    found = []
    for name in tensors:
        if name in weights:
            continue
        new, inverted = name, False
        if isinstance(tensors, Checkpoint):
            new, inverted = input_scale_name(name, tensors.layout, how.name)
        if opened and not inverted:
            entry = tensors.plain[name]  # type: ignore[attr-defined]
            slot = how.plain(dataclasses.replace(entry, name=new))
            found.append((slot, _copier(slot.name, entry.chunks)))
            continue
        value = tensors[name]
        assert isinstance(value, Tensor)
        value = _inverse(value, name) if inverted else value
        slot = plain_slot(how, new, value)
        found.append((slot, _writer(slot.name, value)))
    return found


def _copier(name: str, chunks: Callable[[], Any]) -> Copy:
    return lambda sink: sink.copy(name, chunks())


def _writer(name: str, value: Tensor) -> Copy:
    return lambda sink: sink.write(name, bytes_of(value))


def _inverse(scale: Tensor, name: str) -> Tensor:
    result = 1.0 / scale.to(torch.float32)
    if not bool((result.isfinite() & (result > 0)).all()):
        raise InputError(
            f"{name!r} is no scale that can be inverted ({scale.flatten()[:1].tolist()}): it is "
            "zero, infinite or NaN; calibrate the model's inputs again"
        )
    return result
