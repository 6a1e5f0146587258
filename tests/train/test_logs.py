"""TensorBoard and Weights & Biases: every number once, and no failure of theirs ends a run.

The real libraries are used, W&B offline and in processes of its own, for it starts services.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fp4lab import cli
from fp4lab.train import FitConfig, RunConfig, fit, logs, toml, train
from fp4lab.train.command import with_project
from fp4lab.train.metrics import Event, numbers, read
from fp4lab.train.wandb_log import Wandb, WandbRecord, _delete_unsynchronized

Lines = Callable[[Path], list[Event]]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="reads event files, which needs the extra tensorboard",
    )
    found = accumulator.EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    tags = found.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in tags}


def expected(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The same from metrics.jsonl, in float32 as in event files."""
    found: dict[str, list[tuple[int, float]]] = {}
    for event in read(folder / "metrics.jsonl"):
        for key, value in numbers(event).items():
            rounded = struct.unpack("f", struct.pack("f", value))[0]
            found.setdefault(key, []).append((event["step"], rounded))
    return found


def test_tensorboard_shows_every_number_once(
    small_task: Any, fit_config: FitConfig, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    config = dataclasses.replace(fit_config, tensorboard=True)

    def run(dies_at: int | None = None) -> None:
        def listen(event: Event) -> None:
            if event["kind"] == "train" and event["step"] == dies_at:
                raise RuntimeError("dies")

        fit(small_task(), recipe=None, config=config, folder=tmp_path, on_event=listen)

    for step in (3, 10):  # before the first checkpoint, and beyond the second
        with pytest.raises(RuntimeError, match="dies"):
            run(step)
    run()
    found = scalars(tmp_path)
    assert found == expected(tmp_path)
    assert [step for step, _ in found["train/loss"]] == list(range(1, 13))
    assert [step for step, _ in found["eval/loss"]] == [5, 10, 12]


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_package_is_one_line_before_anything_is_made(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    real = importlib.import_module

    def missing(name: str, *rest: Any) -> Any:
        if package in name:
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", f"--{package}", "--steps", "1", "--out", "run"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"needs the package {package}; add it: pip install {package}\n" in error
    assert list(tmp_path.iterdir()) == []


class Failing:
    """A log that fails when it is made, told something or closed."""

    def __init__(self, when: str) -> None:
        self.when = when
        self.told = 0
        if when == "made":
            raise OSError(28, "No space left on device")

    def write(self, event: Event) -> None:
        self.told += 1
        if self.when == "told" and event["kind"] == "train" and event["step"] == 3:
            raise ConnectionError("no route\nto the host")

    def close(self) -> None:
        if self.when == "closed":
            raise RuntimeError


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ("made", "[Errno 28] No space left on device"),
        ("told", "no route to the host"),
        ("closed", "RuntimeError"),
    ],
)
def test_a_log_that_fails_ends_no_run(
    when: str, told: str, small_task: Any, fit_config: FitConfig, tmp_path: Path,
    lines: Lines, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    fit(small_task(), recipe=None, config=fit_config, folder=tmp_path / "plain")
    monkeypatch.setattr(logs, "TensorBoard", lambda folder, step: Failing(when))
    monkeypatch.setattr(logs, "_tensorboard", lambda: None)
    config = dataclasses.replace(fit_config, tensorboard=True)
    events: list[Event] = []
    result = fit(
        small_task(), recipe=None, config=config, folder=tmp_path / "run", on_event=events.append
    )
    assert result.finished
    assert lines(tmp_path / "run") == lines(tmp_path / "plain")
    notices = [event["text"] for event in events if event["kind"] == "notice"]
    assert notices == [f"TensorBoard failed, and the run goes on without it: {told}"]


class Module:
    """W&B as far as it is used, with a server that knows some steps."""

    class Settings:
        def __init__(self, **options: Any) -> None:
            self.options = options

    def __init__(self, folder: Path, *, known: int = 0) -> None:
        self.folder = folder
        self.step = known
        self.resumed = known > 0
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.given: dict[str, Any] = {}
        self.sessions = 0

    def init(self, **given: Any) -> Module:
        self.sessions += 1
        self.given = given
        self.dir = str(self.folder / "wandb" / f"offline-run-{self.sessions}" / "files")
        Path(self.dir).mkdir(parents=True)
        return self

    def log(self, values: dict[str, float], *, step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        pass


def events(first: int, last: int) -> list[Event]:
    return [{"kind": "train", "step": step, "loss": 1.0 / step} for step in range(first, last + 1)]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    module = Module(tmp_path)
    monkeypatch.setattr("fp4lab.train.wandb_log.wandb_module", lambda config: module)
    return module


def tell(log: Wandb, found: list[Event]) -> None:
    for event in found:
        log.write(event)


def steps(module: Module) -> list[int]:
    return [step for step, _ in module.logged]


def test_wandb_is_told_every_step_once(fake: Module, fit_config: FitConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(fit_config, wandb="numerics", wandb_group="ours")
    first = Wandb(config, tmp_path, history=[])
    tell(first, events(1, 6))
    first.close()
    # Stopped in peace at 6, resumed from 4, killed at 9.
    killed = Wandb(config, tmp_path, history=events(1, 4))
    tell(killed, events(5, 9))
    assert steps(fake) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert not Path(fake.folder / "wandb" / "offline-run-9").exists()
    # What the killed one told is told again, in a folder that takes the place of its own.
    fake.logged.clear()
    last = Wandb(config, tmp_path, history=events(1, 8))
    tell(last, events(9, 10))
    last.close()
    assert steps(fake) == [7, 8, 9, 10]
    kept = sorted(path.name for path in (tmp_path / "wandb").iterdir())
    assert kept == ["offline-run-1", "offline-run-3"]
    record = WandbRecord(**json.loads((tmp_path / "wandb.json").read_text()))
    assert record == WandbRecord(id=fake.given["id"], step=10, open=[])  # type: ignore[arg-type]
    given = {key: fake.given[key] for key in ("project", "group", "name", "resume")}
    assert given == {
        "project": "numerics", "group": "ours", "name": tmp_path.name, "resume": "allow",
    }  # fmt: skip


def test_wandb_is_not_told_what_the_server_has(
    fake: Module, fit_config: FitConfig, tmp_path: Path
) -> None:
    Wandb(fit_config, tmp_path, history=[])
    fake.step, fake.resumed = 4, True  # the next that the server expects
    tell(Wandb(fit_config, tmp_path, history=events(1, 6)), events(7, 8))
    assert steps(fake) == [4, 5, 6, 7, 8]


def test_a_run_that_is_logged_late_tells_its_past(
    fake: Module, fit_config: FitConfig, tmp_path: Path
) -> None:
    tell(Wandb(fit_config, tmp_path, history=events(1, 3)), events(4, 5))
    assert steps(fake) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("name", "synced", "kept"),
    [("offline-run-1", False, False), ("offline-run-1", True, True), ("run-1", False, True)],
)
def test_only_an_offline_folder_is_deleted(
    name: str, synced: bool, kept: bool, tmp_path: Path
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / ("run-1.wandb.synced" if synced else "run-1.wandb")).touch()
    _delete_unsynchronized(folder)
    assert folder.exists() == kept


def test_a_project_may_be_left_out() -> None:
    assert with_project(["--wandb"]) == ["--wandb", "fp4lab"]
    assert with_project(["--wandb", "--steps", "3"]) == ["--wandb", "fp4lab", "--steps", "3"]
    assert with_project(["--wandb", "mine", "--steps", "3"]) == ["--wandb", "mine", "--steps", "3"]
    assert with_project(["--steps", "3"]) == ["--steps", "3"]


def test_logs_change_no_hash() -> None:
    with_logs = RunConfig(tensorboard=True, wandb="a", wandb_group="b")
    assert with_logs.hash == RunConfig().hash


#: Trains, and dies at a step.
DYING = """
import os, signal, sys
from pathlib import Path
from fp4lab.train import RunConfig, toml, train

def die(event):
    if event["kind"] == "train" and event["step"] == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    train(toml.load(folder.with_suffix(".toml"), RunConfig), folder=folder, on_event=die)
"""


def offline_steps(folder: Path) -> list[int]:
    """The steps of all histories in the files of W&B's log: records in blocks of 32 KiB."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2", reason="needs the extra wandb")
    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in _records(path.read_bytes()):
            record = messages.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                found.append(record.history.step.num)
    return found


def _records(data: bytes) -> Iterator[bytes]:
    place, whole = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in {1, 4}:  # a whole record, or the last part of one
            yield whole
            whole = b""


@pytest.mark.slow
def test_the_real_wandb_offline(language_config: RunConfig, tmp_path: Path, lines: Lines) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    folder, script = tmp_path / "run", tmp_path / "dying.py"
    script.write_text(DYING)
    config = dataclasses.replace(language_config, wandb="numerics")
    folder.with_suffix(".toml").write_text(toml.dumps(config))
    environment = {**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": ":".join(sys.path)}
    for step, status in ((6, -signal.SIGKILL), (10, -signal.SIGKILL), (99, 0)):
        done = subprocess.run(
            [sys.executable, script, folder, str(step)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        assert done.stdout == ""
    assert offline_steps(folder) == list(range(1, 13))
    train(dataclasses.replace(config, wandb=None), folder=tmp_path / "plain")
    assert lines(tmp_path / "plain") == lines(folder)


@pytest.mark.slow
def test_wandb_without_a_network_ends_no_run(language_config: RunConfig, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    script = tmp_path / "dying.py"
    script.write_text(DYING)
    (tmp_path / "run.toml").write_text(
        toml.dumps(dataclasses.replace(language_config, wandb="numerics"))
    )
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("WANDB")},
        "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9", 
        "PYTHONPATH": ":".join(sys.path),
    }  # fmt: skip
    code = script.read_text().replace(
        "    folder =",
        "    from fp4lab.train import wandb_log; wandb_log.TIMEOUT_S = 3\n    folder =",
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "run", "99"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["finished"]


def test_an_unknown_wandb_record_is_one_notice(
    fake: Module, small_task: Any, fit_config: FitConfig, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(logs, "wandb_module", lambda config: fake)
    config = dataclasses.replace(fit_config, wandb="a", steps=3)
    folder = tmp_path / "run"
    fake.folder = folder
    fit(small_task(), recipe=None, config=config, folder=folder)
    assert steps(fake) == [1, 2, 3, 3]  # the last evaluation has its own
    (folder / "result.json").unlink()
    (folder / "wandb.json").write_text("{")
    told: list[Event] = []
    fit(small_task(), recipe=None, config=config, folder=folder, on_event=told.append)
    assert any("wandb.json is damaged" in str(event.get("text")) for event in told)
