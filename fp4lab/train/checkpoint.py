"""Checkpoints: versioned folders of safetensors and JSON with checksums, never pickled code.

    checkpoints/step-00000100/
        model.safetensors      parameters and persistent buffers, each tensor once
        optimizer.safetensors  "<parameter>/<state>", e.g. "head.weight/exp_avg"
        state.json             step, what the run is, names of tied tensors
        manifest.json          format version, size and SHA-256 of every file above

A checkpoint is written into a hidden sibling, synced and renamed, so that a folder with a final
name is complete whenever the process dies. There is no random state in it: batches, learning rate
and rounding noise are functions of the step.

Left out: sharded and asynchronous saving, which torch.distributed.checkpoint has, for it stores
pickled metadata; a model here fits the memory of one process.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fp4lab.errors import InputError
from fp4lab.specs.files import read_record, sha256, sync, write_json
from fp4lab.tensor.files import write_file

VERSION = 1
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
_NAME = re.compile(r"step-(\d{8,})")
_CURE = "use another checkpoint"


class DamagedCheckpointError(InputError):
    """A checkpoint whose files are missing, cut short or changed."""


@dataclass(frozen=True, kw_only=True)
class State:
    """What state.json holds."""

    #: Updates made before.
    step: int
    #: Targets trained on, or microbatches for a task that does not count targets.
    tokens: int
    #: Other names of tied tensors, with the name each is saved under.
    tied: dict[str, str]
    config_hash: str


@dataclass(frozen=True)
class Checkpoint:
    """What was saved of a run."""

    state: State
    #: By file: "model" and "optimizer".
    tensors: dict[str, dict[str, Tensor]]

    @property
    def step(self) -> int:
        """Updates made before."""
        return self.state.step


@dataclass(frozen=True)
class _File:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _Manifest:
    version: int
    files: dict[str, _File]


def save(root: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write `root/step-XXXXXXXX`, then delete all but the `keep` newest; return the new folder.

    On any failure, a full disk (OSError) included, the older checkpoints stay as they were and
    nothing of the new one is left. Tensors must be contiguous and share no memory.
    """
    root.mkdir(parents=True, exist_ok=True)
    final = root / f"step-{checkpoint.step:08d}"
    temporary = root / f".{final.name}.{os.getpid()}.tmp"
    try:
        temporary.mkdir()
        for name, tensors in checkpoint.tensors.items():
            file = temporary / f"{name}.safetensors"
            write_file(file, tensors, {})
            sync(file)
        write_json(temporary / "state.json", dataclasses.asdict(checkpoint.state))
        manifest = {
            path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
            for path in sorted(temporary.iterdir())
        }
        write_json(temporary / "manifest.json", {"version": VERSION, "files": manifest})
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(root)
    for old in available(root)[:-keep]:
        remove(old)
    return final


def load(path: Path) -> Checkpoint:
    """Read a checkpoint folder after verifying its checksums.

    Raises InputError if there is none, and DamagedCheckpointError, which says what is wrong, if it
    is not as it was written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_dir():
        raise InputError(f"checkpoint={path} does not exist; give a folder named step-XXXXXXXX")
    files = [path / name for name in verify(path)]
    try:
        state = read_record(path / "state.json", State, cure=_CURE)
        tensors = {file.stem: load_file(file) for file in files if file.suffix == ".safetensors"}
    except InputError as error:
        raise DamagedCheckpointError(str(error)) from None
    except SafetensorError as error:
        raise _damaged(path, str(error)) from None
    return Checkpoint(state, tensors)


def verify(path: Path) -> list[str]:
    """The names of a checkpoint's files; DamagedCheckpointError if one is not as it was written."""
    try:
        manifest = read_record(path / "manifest.json", _Manifest, cure=_CURE)
    except (OSError, InputError):
        raise _damaged(path, "manifest.json is missing or unreadable") from None
    if manifest.version != VERSION:
        raise _damaged(
            path, f"it has format version {manifest.version!r}, this program reads {VERSION}"
        )
    for name in sorted({*manifest.files, *FILES}):
        file, expected = path / name, manifest.files.get(name)
        if not file.is_file() or expected is None:
            raise _damaged(path, f"{name} is missing")
        if (size := file.stat().st_size) != expected.bytes:
            raise _damaged(path, f"{name} has {size} bytes, not {expected.bytes}")
        if sha256(file) != expected.sha256:
            raise _damaged(path, f"{name} does not have the checksum it was written with")
    return list(manifest.files)


def newest(root: Path, *, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest intact checkpoint, for a run to go on from; None if there has never been one.

    A damaged one that is newer is reported and renamed to `damaged-step-...`, out of the way of
    the run. InputError if all are damaged: starting over must be the user's choice.
    """
    for leftover in root.glob(".step-*.tmp"):
        shutil.rmtree(leftover)
    paths = available(root)
    for path in reversed(paths):
        try:
            return load(path)
        except DamagedCheckpointError as error:
            aside = path.with_name(f"damaged-{path.name}")
            remove(aside)
            path.rename(aside)
            report(f"{error}; renamed to {aside.name}, going on from the one before it")
    if any(root.glob("damaged-step-*")):
        raise InputError(
            f"checkpoints={root} holds damaged checkpoints only; "
            "restore one, or delete the run's folder to start over"
        )
    return None


def available(root: Path) -> list[Path]:
    """The checkpoint folders in `root`, oldest first, unverified."""
    if not root.is_dir():
        return []
    found = [(int(m[1]), p) for p in root.iterdir() if (m := _NAME.fullmatch(p.name))]
    return [path for _, path in sorted(found)]


def remove(path: Path) -> None:
    """Delete a checkpoint folder, so that a half-deleted one never has a final name."""
    if path.exists():
        doomed = path.with_name(f".{path.name.removeprefix('damaged-')}.{os.getpid()}.tmp")
        path.rename(doomed)
        shutil.rmtree(doomed)


def _damaged(path: Path, what: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"checkpoint={path} is damaged: {what}; {_CURE}")
