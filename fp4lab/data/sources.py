"""Where text comes from: the standard library's own source, a folder, or a file."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fp4lab.data.corpus import Corpus
from fp4lab.data.stdlib_modules import MODULES
from fp4lab.errors import InputError

TEXT_SUFFIXES = frozenset(
    {".txt", ".md", ".rst", ".tex", ".html", ".py", ".pyi", ".sh", ".jl", ".js", ".ts"}
    | {".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".rs", ".go", ".java", ".lean"}
)
"""Suffixes, in lower case, of what is text in a folder."""


@dataclass(frozen=True)
class Source:
    """Where the files of a text lie, as (name, path) in a fixed order; nothing is read yet.

    >>> _ = Path("notes.txt").write_bytes(b"Some text.")
    >>> find("notes.txt").files
    (('notes.txt', PosixPath('notes.txt')),)
    """

    name: str
    files: tuple[tuple[str, Path], ...]

    def read(self) -> Corpus:
        """All of it, in memory."""
        return Corpus.from_files(
            self.name, ((name, path.read_bytes()) for name, path in self.files)
        )


def find(source: str) -> Source:
    """The files that `source` names: "stdlib", or the path of a folder or a file.

    A folder that is itself called stdlib is "./stdlib". In a folder: recursively, in the order of
    their relative paths (code points, "/" between parts), every file whose suffix is in
    `TEXT_SUFFIXES`; hidden files and folders (.git, .venv) and linked folders are passed over. A
    single file may have any name. `InputError` if the path does not exist or holds no text file, or
    if the standard library's source is not there, as in a Python that ships only bytecode.

    >>> Path("texts").mkdir()
    >>> _ = Path("texts/a.md").write_bytes(b"Text."), Path("texts/b.bin").write_bytes(b"no text")
    >>> find("texts").files
    (('a.md', PosixPath('texts/a.md')),)
    """
    if source == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        return Source("stdlib", tuple((name, _module_source(root, name)) for name in MODULES))
    root = Path(source)
    if root.is_file():
        return Source(source, ((root.name, root),))
    if not root.is_dir():
        raise InputError(
            f"source={source!r} is no folder or file; give an existing path, or 'stdlib'"
        )
    names = sorted(_text_files(root))
    if not names:
        raise InputError(
            f"source={source!r} holds no text file; text is what ends in "
            f"{' '.join(sorted(TEXT_SUFFIXES))}, and a single file may have any name"
        )
    return Source(source, tuple((name, root / name) for name in names))


def load(source: str) -> Corpus:
    """The corpus that `source` names, in memory; see `find` for what it may be, and its errors.

    >>> _ = Path("notes.txt").write_bytes(b"Some text.")
    >>> load("notes.txt")
    Corpus(name='notes.txt', num_bytes=10, files=1)
    """
    return find(source).read()


def _module_source(root: Path, module: str) -> Path:
    # By path, not by importlib.util.find_spec: that would import every parent package.
    stem = root.joinpath(*module.split("."))
    for path in (stem.with_name(stem.name + ".py"), stem / "__init__.py"):
        if path.is_file():
            return path
    raise InputError(
        f"source='stdlib': module {module!r} has no source below {root}; "
        "use a Python with its standard library's source, or name a folder of text"
    )


def _text_files(root: Path) -> Iterator[str]:
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") for part in parts)
        if path.suffix.lower() in TEXT_SUFFIXES and not hidden and path.is_file():
            yield "/".join(parts)
