from __future__ import annotations

import doctest
import errno
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import nn

from fp4lab.errors import InputError
from fp4lab.optim import build_optimizer
from fp4lab.train import checkpoint as checkpoints
from fp4lab.train import tensors as tensors_module
from fp4lab.train.checkpoint import Checkpoint, DamagedCheckpointError, State
from fp4lab.train.tensors import (
    model_tensors,
    optimizer_tensors,
    restore_model,
    restore_optimizer,
)


def make(step: int, size: int = 100) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    weights = {
        "w": torch.randn(size, generator=generator),
        "codes": torch.arange(7, dtype=torch.uint8),
        "half": torch.tensor([0.1], dtype=torch.bfloat16),
    }
    return Checkpoint(
        State(step=step, tokens=10 * step, tied={"v": "ä"}, config_hash="0" * 64),
        {"model": weights, "optimizer": {"w/step": torch.tensor(3.0)}},
    )


def assert_same(a: Checkpoint, b: Checkpoint) -> None:
    assert a.state == b.state
    assert a.tensors.keys() == b.tensors.keys()
    for file in a.tensors:
        assert a.tensors[file].keys() == b.tensors[file].keys()
        for key, value in a.tensors[file].items():
            assert value.dtype == b.tensors[file][key].dtype
            assert torch.equal(value, b.tensors[file][key])


def ignore(message: str) -> None:
    raise AssertionError(f"nothing should be reported, but: {message}")


def test_docstring_example() -> None:
    assert doctest.testmod(tensors_module).failed == 0


def test_round_trip_is_exact_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    for step in (5, 10, 15, 123456789):
        checkpoints.save(root, make(step), keep=2)
    names = sorted(path.name for path in root.iterdir())
    assert names == ["step-00000015", "step-123456789"]
    for step, path in zip((15, 123456789), checkpoints.available(root), strict=True):
        assert_same(checkpoints.load(path), make(step))
    found = checkpoints.newest(root, report=ignore)
    assert found is not None
    assert found.step == 123456789


def test_no_folder_and_an_empty_folder_hold_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoints.newest(tmp_path / "absent", report=ignore) is None
    assert checkpoints.newest(tmp_path, report=ignore) is None


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [truncate, flip, empty, Path.unlink])
def test_every_kind_of_damage_is_found_and_named(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    path = checkpoints.save(tmp_path, make(3), keep=1)
    damage(path / name)
    if (damage, name) == (truncate, "manifest.json"):
        # The last byte is a newline, without which the manifest still says the same.
        assert_same(checkpoints.load(path), make(3))
        return
    with pytest.raises(DamagedCheckpointError) as caught:
        checkpoints.load(path)
    message = str(caught.value)
    assert "step-00000003 is damaged" in message
    assert "\n" not in message
    if name != "manifest.json":
        assert name in message


def test_a_damaged_newest_is_reported_and_the_one_before_is_used(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoints.save(tmp_path, make(step), keep=3)
    truncate(tmp_path / "step-00000003" / "model.safetensors")
    flip(tmp_path / "step-00000002" / "state.json")
    reports: list[str] = []
    found = checkpoints.newest(tmp_path, report=reports.append)
    assert found is not None
    assert_same(found, make(1))
    assert [("step-00000003" in r, "step-00000002" in r) for r in reports] == [
        (True, False),
        (False, True),
    ]
    # The damaged ones are out of the way: the run reaches their steps again and is not pruned.
    checkpoints.save(tmp_path, make(2), keep=1)
    assert [p.name for p in checkpoints.available(tmp_path)] == ["step-00000002"]
    assert (tmp_path / "damaged-step-00000003").is_dir()


def test_nothing_but_damaged_ones_is_an_error_every_time(tmp_path: Path) -> None:
    empty(checkpoints.save(tmp_path, make(1), keep=1) / "model.safetensors")
    for _ in range(2):
        reports: list[str] = []
        with pytest.raises(InputError, match="damaged checkpoints only"):
            checkpoints.newest(tmp_path, report=reports.append)


def test_another_format_version_is_refused(tmp_path: Path) -> None:
    manifest = checkpoints.save(tmp_path, make(1), keep=1) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 99}))
    with pytest.raises(DamagedCheckpointError, match="format version 99"):
        checkpoints.load(manifest.parent)


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    checkpoints.save(tmp_path, make(1), keep=1)
    (tmp_path / ".step-00000002.999.tmp").mkdir()
    (tmp_path / ".step-00000002.999.tmp" / "model.safetensors").write_bytes(b"half")
    found = checkpoints.newest(tmp_path, report=ignore)
    assert found is not None
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_a_disk_that_refuses_leaves_the_old_checkpoint_and_nothing_new(
    tmp_path: Path, small_disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    checkpoints.save(tmp_path, make(1), keep=1)
    with small_disk(2**16), pytest.raises(OSError, match="File too large") as caught:
        checkpoints.save(tmp_path, make(2, size=2**16), keep=1)
    assert caught.value.errno == errno.EFBIG
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
    assert_same(checkpoints.load(tmp_path / "step-00000001"), make(1))


@pytest.mark.parametrize("name", FILES)
def test_no_space_at_any_file(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints.save(tmp_path, make(1), keep=1)

    def full(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        if path.name == name:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(checkpoints, "write_file", full)
    if name.endswith(".json"):
        monkeypatch.setattr(checkpoints, "write_json", full)
    with pytest.raises(OSError, match="No space left on device"):
        checkpoints.save(tmp_path, make(2), keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.mid = nn.Linear(4, 4)
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("empty_too", torch.zeros(0))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.mid(self.embedding(x)))
        return result


def one_update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.tensor([1, 2])).square().sum().backward()
    optimizer.step()


def test_model_and_optimizer_go_on_to_the_same_bits_from_a_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tied()
    optimizer = build_optimizer(model, learning_rate=0.01)
    one_update(model, optimizer)
    weights, tied = model_tensors(model)
    assert tied == {"head.weight": "embedding.weight"}
    assert "empty_too" in weights
    state = State(step=1, tokens=1, tied=tied, config_hash="")
    saved = Checkpoint(state, {"model": weights, "optimizer": optimizer_tensors(optimizer, model)})
    path = checkpoints.save(tmp_path, saved, keep=1)
    one_update(model, optimizer)

    other = Tied()
    other_optimizer = build_optimizer(other, learning_rate=0.01)
    loaded = checkpoints.load(path)
    restore_model(other, loaded.tensors["model"], loaded.state.tied, source=path)
    restore_optimizer(other_optimizer, other, loaded.tensors["optimizer"])
    one_update(other, other_optimizer)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    assert other.head.weight is other.embedding.weight


def test_a_checkpoint_of_another_model_names_the_first_tensor_that_differs(tmp_path: Path) -> None:
    weights, tied = model_tensors(nn.Linear(3, 2))
    with pytest.raises(InputError, match=r"'weight' is \(2, 3\) in the checkpoint, \(2, 4\)"):
        restore_model(nn.Linear(4, 2), weights, tied, source=tmp_path)
    with pytest.raises(InputError, match=r"'bias' is \(2,\) in the checkpoint, absent"):
        restore_model(nn.Linear(3, 2, bias=False), weights, tied, source=tmp_path)


def test_a_tie_to_an_absent_tensor_is_named(tmp_path: Path) -> None:
    weights, _ = model_tensors(Tied())
    with pytest.raises(InputError, match=r"'head.weight' is absent in the checkpoint"):
        restore_model(Tied(), weights, {"head.weight": "embeding.weight"}, source=tmp_path)


def test_optimizer_state_of_an_absent_parameter_is_named() -> None:
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(model, learning_rate=0.01)
    with pytest.raises(InputError, match="'weigth/exp_avg' is of no parameter"):
        restore_optimizer(optimizer, model, {"weigth/exp_avg": torch.zeros(2, 3)})


def test_a_missing_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        checkpoints.load(tmp_path / "step-00000001")
