"""A checkpoint that is being written: the file of its tensors, and the files that lie beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fp4lab
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat
from fp4lab.interop import atomic, configs, gguf_files, safetensors_files
from fp4lab.interop.configs import Described, have_inputs, kept_layers
from fp4lab.interop.entries import Slot
from fp4lab.interop.gguf_files import Key, uint32
from fp4lab.interop.layouts import Layout, LayoutName, matrix_of
from fp4lab.interop.sink import Sink
from fp4lab.interop.sources import CONFIG, INDEX, PICKLED, STAMP, Source
from fp4lab.interop.stored import kind_of
from fp4lab.tensor.files import FILE_CONVENTION, description

WEIGHTS = "model.safetensors"
#: files of a model's folder that hold weights, which are not copied
_OTHER_WEIGHTS = (*PICKLED, ".safetensors", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".npz")
#: metadata that lists the files written beside the weights, which alone may be replaced
_FILES = "fp4lab_files"
_FILE_TYPES = {"NVFP4": 39, "MXFP4": 38}


@dataclass(frozen=True)
class Form:
    """What a quantized tensor is like: its format, sizes, axis, and the text of its transform."""

    format: BlockFormat
    shape: tuple[int, ...]
    axis: int = -1
    transform: str = ""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The sizes with blocks along the last dimension."""
        return self.shape if self.axis == -1 else matrix_of(self.shape)[::-1]


@dataclass(frozen=True)
class Plan:
    """All that is known before a byte is written.

    Attributes:
        layout: how it is written.
        weights: what is quantized.
        plain: the places of the other tensors.
        source: where the tensors come from: a folder, whose other files are copied, or a GGUF
            file, whose metadata is.
        config: the model's config.json.
        carried: the JSON files of a model that keeps its layout.
    """

    layout: Layout
    weights: Mapping[str, Form]
    plain: Sequence[Slot]
    source: Source | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    carried: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def slots(self) -> list[Slot]:
        """The tensors of the file; InputError for two of one name."""
        slots = [
            slot
            for name, form in self.weights.items()
            for slot in self.layout.slots(name, form.stored_shape, form.format)
        ] + list(self.plain)
        seen: set[str] = set()
        for slot in slots:
            if slot.name in seen:
                raise InputError(f"two tensors would be stored as {slot.name!r}; rename one")
            seen.add(slot.name)
        return slots


def is_folder(layout: LayoutName, target: Path) -> bool:
    """Whether a layout is a folder there; InputError for a name that is none of the other kind."""
    suffix = target.suffix.lower()
    named = suffix == ".safetensors"
    if layout == "gguf":
        if suffix != ".gguf":
            raise InputError(
                f"out={str(target)!r}: GGUF is one file; give a name that ends in .gguf"
            )
        return False
    if layout == "fp4lab" and named:
        return False
    if named or suffix == ".gguf":
        raise InputError(
            f"out={str(target)!r}: {layout} is a folder of weights and config.json; give a name "
            f"without {target.suffix}"
        )
    return True


def check(layout: LayoutName, target: Path, *, overwrite: bool, source: Path | None) -> None:
    """InputError unless a layout can be written to a path; before any work is done."""
    folder = is_folder(layout, target)
    atomic.check_target(target, folder=folder, overwrite=overwrite, foreign=foreign)
    if source is None:
        return
    real, other = target.resolve(), source.resolve()
    if real == other or real in other.parents or (other.is_dir() and other in real.parents):
        raise InputError(
            f"out={str(target)!r} and the source {str(source)!r} lie in each other; give another "
            "place"
        )


def foreign(folder: Path) -> str:
    """What a folder holds beside a checkpoint that was written here; "" where that is all."""
    try:
        _, metadata = safetensors_files.header(folder / WEIGHTS)
        written = {WEIGHTS, *json.loads(metadata[_FILES])}
    except (InputError, OSError, KeyError, ValueError, TypeError):
        written = set()
    folders = {str(path) for name in written for path in Path(name).parents}
    found = (str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    return next((name for name in found if name not in written | folders), "")


def write_plan(plan: Plan, target: Path, *, overwrite: bool, fill: Callable[[Sink], None]) -> None:
    """Write what was planned; `fill` gives the bytes of all tensors.

    Raises:
        InputError: the target may not be written, or the layout has no place for a tensor.
        OSError: it cannot be written. Whatever happens, what was there before stays as it was.
    """
    folder = is_folder(plan.layout.name, target)
    slots, texts = plan.slots(), _texts(plan) if folder else {}
    with atomic.replacing(target, folder=folder, overwrite=overwrite, foreign=foreign) as temporary:
        origin = None if plan.source is None else plan.source.folder
        copied = _copy(origin, temporary) if folder and origin is not None else []
        for name, table in texts.items():
            (temporary / name).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        path, beside = (temporary / WEIGHTS, [*copied, *texts]) if folder else (temporary, None)
        with _sink(plan, path, slots, beside) as sink:
            fill(sink)


def _sink(plan: Plan, path: Path, slots: Sequence[Slot], beside: Sequence[str] | None) -> Sink:
    if plan.layout.name == "gguf":
        return gguf_files.sink(path, slots, _keys(plan, slots))
    metadata = {"format": "pt", "fp4lab": fp4lab.__version__}
    if plan.layout.name == "fp4lab":
        described = {
            name: description(form.format, form.shape, axis=form.axis, transform=form.transform)
            for name, form in plan.weights.items()
        }
        metadata = {"convention": FILE_CONVENTION, "quantized": json.dumps(described)}
    if beside is not None:
        metadata[_FILES] = json.dumps(sorted(beside))
    return safetensors_files.sink(path, slots, metadata)


def _keys(plan: Plan, slots: Sequence[Slot]) -> dict[str, Key]:
    found = None if plan.source is None else plan.source.keys
    keys = dict(found or {})
    if found is None:
        # tensors under the names of another tool are no model that llama.cpp knows
        keys["general.architecture"] = gguf_files.string("fp4lab")
    types = {slot.dtype for slot in slots} & set(_FILE_TYPES)
    if len(types) == 1:
        keys["general.file_type"] = uint32(_FILE_TYPES[types.pop()])
    keys["general.quantization_version"] = uint32(2)
    keys[STAMP] = gguf_files.string(fp4lab.__version__)
    return keys


def _texts(plan: Plan) -> dict[str, dict[str, Any]]:
    """The JSON files of a folder."""
    if plan.carried:
        return dict(plan.carried)
    name = plan.layout.name
    kinds = sorted({str(kind_of(form.format)) for form in plan.weights.values()})
    if name != "fp4lab" and len(kinds) > 1:
        raise InputError(
            f"the tensors are {' and '.join(kinds)}; one kind can be written as {name}: requantize "
            "some, or use layout='fp4lab'"
        )
    plain = {slot.name: slot.shape for slot in plan.plain}
    inputs = have_inputs(name, plan.weights, plain)
    kept = kept_layers(plain, plan.config, set(plan.weights))
    if not kinds and name != "fp4lab":
        raise InputError(f"nothing is quantized, so there is nothing to write as {name}")
    described = Described(kinds[0] if kinds else "", kept, inputs)
    return configs.files(name, described, plan.config)


def _copy(source: Path, target: Path) -> list[str]:
    """Copy the files of a model that hold no weights; their names.

    Links are followed, as Hugging Face's cache consists of them: into its `blobs`, or the folder
    itself, and nowhere else, for the copy of a private file could be passed on with the model.
    """
    skipped = {INDEX, CONFIG, configs.HF_QUANT_CONFIG}
    copied: list[str] = []
    inside = (source.resolve(), source.resolve().parent.parent / "blobs")
    for path in sorted(source.rglob("*")):
        inner = path.relative_to(source)
        hidden = any(part.startswith(".") for part in inner.parts)
        weights = path.suffix in _OTHER_WEIGHTS or path.name.endswith(".index.json")
        if hidden or weights or str(inner) in skipped or not path.is_file():
            continue
        if not any(place in path.resolve().parents for place in inside):
            raise InputError(
                f"{path} is a link to {path.resolve()}, outside of the model; put a copy in its "
                "place, or delete it"
            )
        (target / inner).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / inner)
        copied.append(str(inner))
    return copied
