"""Files are whole or absent, and are named when the disk is full."""

from __future__ import annotations

import doctest
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fp4lab.specs import files

SmallDisk = Callable[[int], AbstractContextManager[None]]


def test_docstring_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(files).failed == 0


def test_a_disk_that_is_full_leaves_the_old_file_and_is_named(
    tmp_path: Path, small_disk: SmallDisk
) -> None:
    path = tmp_path / "result.json"
    files.write_text(path, "old")
    with small_disk(100), pytest.raises(OSError, match="File too large") as caught:
        files.write_text(path, "x" * 1000)
    assert caught.value.filename == str(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
    assert path.read_text() == "old"


def test_a_block_that_fails_changes_nothing_and_what_it_wrote_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError), files.replacing(path) as temporary:
        (temporary.write_bytes(b"half"), path.touch(exist_ok=False))
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (b"old", [path])


def test_the_bytes_are_on_the_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    synced = []
    monkeypatch.setattr(files, "sync", lambda what: synced.append((what, path.exists())))
    with files.replacing(path) as temporary:
        temporary.write_bytes(b"new")
    assert synced == [(temporary, False), (tmp_path, True)]
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("name", ["absent/file", "folder"])
def test_a_file_that_cannot_be_written_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory") as caught:
        files.write_text(tmp_path / name, "text")
    assert caught.value.filename == str(tmp_path / name)
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_only_leftovers_are_removed(tmp_path: Path) -> None:
    kept = [".lock", ".notes.tmp", "a.1.tmp", "result.json"]
    for name in [*kept, ".result.json.7.tmp", ".result.json.123.tmp"]:
        (tmp_path / name).touch()
    (tmp_path / ".folder.1.tmp").mkdir()
    files.remove_leftovers(tmp_path)
    files.remove_leftovers(tmp_path / "absent")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([*kept, ".folder.1.tmp"])


def test_a_pipe_in_the_place_of_a_leftover_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "a"
    os.mkfifo(files.beside(path))
    files.write_text(path, "text")
    assert path.read_text() == "text"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_file_has_the_usual_mode_or_that_of_the_one_it_replaces(tmp_path: Path) -> None:
    path, before = tmp_path / "a", os.umask(0o027)
    try:
        with files.replacing(path) as temporary:
            temporary.write_text("text")
            temporary.chmod(0o600)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o664)
        files.write_text(path, "new")
        assert stat.S_IMODE(path.stat().st_mode) == 0o664
    finally:
        os.umask(before)
