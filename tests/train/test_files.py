"""The files of a run are named when the disk is full or they are damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from fp4lab.errors import InputError
from fp4lab.specs import files
from fp4lab.train import FitConfig, evaluate, fit
from fp4lab.train.checkpoint import DamagedCheckpointError
from fp4lab.train.metrics import MetricsFile

Broken = Callable[[str], Iterator[str]]
SmallDisk = Callable[[int], AbstractContextManager[None]]


def test_metrics_name_their_file_when_the_disk_is_full(
    tmp_path: Path, small_disk: SmallDisk
) -> None:
    log = MetricsFile(tmp_path / "metrics.jsonl", step=0)
    with small_disk(100):
        for write in (lambda: log.write({"kind": "x" * 1000, "step": 1}), log.close):
            with pytest.raises(OSError, match="File too large") as caught:
                write()
            assert caught.value.filename == str(tmp_path / "metrics.jsonl")


def assert_one_line(error: pytest.ExceptionInfo[InputError], path: Path, cure: str) -> None:
    message = str(error.value)
    assert str(path) in message
    assert cure in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "cure"),
    [("result.json", "delete it"), ("environment.json", "restore a copy, or give another folder")],
)
def test_a_damaged_record_of_a_run_is_named(
    name: str, cure: str, counted_task: Any, fit_config: FitConfig, tmp_path: Path, broken: Broken
) -> None:
    fit(counted_task(), recipe=None, config=fit_config, folder=tmp_path)
    path = tmp_path / name
    table = json.loads(path.read_text())
    for optional in ("resumed", "unreachable"):  # may be absent
        table.pop(optional, None)
    for text in broken(json.dumps(table)):
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            fit(counted_task(), recipe=None, config=fit_config, folder=tmp_path)
        assert_one_line(caught, path, cure)
        if name == "environment.json":
            with pytest.raises(InputError) as caught:
                evaluate(tmp_path, task=counted_task(), device="cpu")
            assert_one_line(caught, path, cure)


def test_a_deleted_result_is_made_again(
    counted_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    first = fit(counted_task(), recipe=None, config=fit_config, folder=tmp_path)
    (tmp_path / "result.json").unlink()
    assert fit(counted_task(), recipe=None, config=fit_config, folder=tmp_path) == first


def seal(path: Path) -> None:
    """Give a changed checkpoint the checksums of what it holds now."""
    entries = {
        file.name: {"bytes": file.stat().st_size, "sha256": files.sha256(file)}
        for file in path.iterdir()
        if file.name != "manifest.json"
    }
    (path / "manifest.json").write_text(json.dumps({"version": 1, "files": entries}))


def test_a_damaged_checkpoint_with_good_checksums_is_named(
    small_task: Any, fit_config: FitConfig, tmp_path: Path, broken: Broken
) -> None:
    fit(small_task(), recipe=None, config=fit_config, folder=tmp_path)
    path = tmp_path / "checkpoints" / "step-00000012"
    state = (path / "state.json").read_text()
    for text in broken(state):
        (path / "state.json").write_text(text)
        seal(path)
        with pytest.raises(DamagedCheckpointError) as caught:
            evaluate(tmp_path, task=small_task(), device="cpu")
        assert_one_line(caught, path, "use another checkpoint")
    (path / "state.json").write_text(state)
    (path / "model.safetensors").write_bytes(b"no tensors")
    seal(path)
    with pytest.raises(DamagedCheckpointError) as caught:
        evaluate(tmp_path, task=small_task(), device="cpu")
    assert_one_line(caught, path, "use another checkpoint")
    (path / "model.safetensors").unlink()
    seal(path)
    with pytest.raises(DamagedCheckpointError, match=r"model\.safetensors is missing"):
        evaluate(tmp_path, task=small_task(), device="cpu")
