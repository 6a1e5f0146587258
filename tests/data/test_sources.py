"""Sources: the fixed list of modules, folders, files, and what is wrong with a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp4lab.data import load, sources, split
from fp4lab.data.stdlib_modules import MODULES
from fp4lab.errors import InputError


def test_the_standard_library_is_the_listed_modules() -> None:
    corpus = load("stdlib")
    assert [file.name for file in corpus.files] == list(MODULES)
    assert list(MODULES) == sorted(set(MODULES))
    assert 5e6 < corpus.num_bytes < 9e6
    assert b"class ArgumentParser(" in corpus.data.tobytes()
    assert corpus.name == "stdlib"


def test_the_standard_librarys_held_out_files_are_whole() -> None:
    parts = split(load("stdlib"), 0.05)
    assert parts.cut_file is None
    assert len(parts.held_out) > 1


def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MODULES", ("argparse", "no.such"))
    with pytest.raises(InputError, match=r"module 'no\.such' has no source .*folder of text"):
        load("stdlib")


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text)


def test_a_folder_is_read_recursively_in_a_fixed_order(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "b.txt": b"1",
            "a/z.py": b"2",
            "a/deep/er/X.MD": b"3",
            "a.rst": b"4\r\n\xff",
            "weights.bin": b"no text suffix",
            "README": b"no suffix",
            ".git/config.txt": b"hidden folder",
            "a/.secret.txt": b"hidden file",
            "empty.txt": b"",
        },
    )
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "a" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "broken.txt").symlink_to(tmp_path / "nowhere.txt")
    corpus = load(str(tmp_path))
    assert [file.name for file in corpus.files] == ["a.rst", "a/deep/er/X.MD", "a/z.py", "b.txt"]
    assert corpus.data.tobytes() == b"4\r\n\xff321"


def test_the_place_of_a_folder_does_not_change_its_hash(tmp_path: Path) -> None:
    for place in ("one", "two"):
        write(tmp_path / place, {"a.txt": b"a", "sub/b.txt": b"b"})
    assert load(str(tmp_path / "one")).sha256 == load(str(tmp_path / "two")).sha256


def test_a_single_file_may_have_any_name(tmp_path: Path) -> None:
    write(tmp_path, {"corpus.bin": b"text"})
    corpus = load(str(tmp_path / "corpus.bin"))
    assert corpus.data.tobytes() == b"text"
    assert [file.name for file in corpus.files] == ["corpus.bin"]


def test_a_source_without_text_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"none/image.png": b"x", "empty/a.txt": b"", "empty.txt": b""})
    with pytest.raises(InputError, match=r"missing' is no folder or file.*'stdlib'"):
        load(str(tmp_path / "missing"))
    with pytest.raises(InputError, match=r"none' holds no text file.*\.txt"):
        load(str(tmp_path / "none"))
    for name in ("empty", "empty.txt"):
        with pytest.raises(InputError, match="holds no text;"):
            load(str(tmp_path / name))
