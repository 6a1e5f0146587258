"""Where text comes from: the standard library's own source, a folder, or a file."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from fp4lab.data.corpus import Corpus
from fp4lab.data.stdlib_modules import MODULES
from fp4lab.errors import InputError

TEXT_SUFFIXES = frozenset(
    {".txt", ".md", ".rst", ".tex", ".html", ".py", ".pyi", ".sh", ".jl", ".js", ".ts"}
    | {".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".rs", ".go", ".java", ".lean"}
)
"""Suffixes, in lower case, that `folder` takes for text."""


def load(source: str) -> Corpus:
    """The corpus that `source` names: "stdlib", or the path of a folder or a file.

    A folder that is itself called stdlib is "./stdlib". Errors as `standard_library` and `folder`.

    >>> _ = Path("notes.txt").write_bytes(b"Some text.")
    >>> load("notes.txt")
    Corpus(name='notes.txt', num_bytes=10, files=1)
    """
    return standard_library() if source == "stdlib" else folder(source)


def standard_library() -> Corpus:
    """The source of the running Python's standard library, by the fixed list `MODULES`.

    About 6.6 million bytes of English and code on any machine without a download. `InputError` if a
    module's source is not there, as in a Python that ships only bytecode.

    >>> standard_library().name
    'stdlib'
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    return Corpus.from_files("stdlib", ((name, _module_source(root, name)) for name in MODULES))


def _module_source(root: Path, module: str) -> bytes:
    # By path, not by importlib.util.find_spec: that would import every parent package.
    stem = root.joinpath(*module.split("."))
    for path in (stem.with_name(stem.name + ".py"), stem / "__init__.py"):
        if path.is_file():
            return path.read_bytes()
    raise InputError(
        f"source='stdlib': module {module!r} has no source below {root}; "
        "use a Python with its standard library's source, or name a folder of text"
    )


def folder(path: str | Path) -> Corpus:
    """All text files below a folder, or one file of any name.

    In a folder: recursively, in the order of their relative paths (code points, "/" between parts),
    every file whose suffix is in `TEXT_SUFFIXES`; hidden files and folders (.git, .venv) and linked
    folders are passed over. Everything is read into memory. `InputError` if the path does not exist
    or holds no text.

    >>> Path("texts").mkdir()
    >>> _ = Path("texts/a.md").write_bytes(b"Text."), Path("texts/b.bin").write_bytes(b"no text")
    >>> folder("texts")
    Corpus(name='texts', num_bytes=5, files=1)
    """
    root = Path(path)
    if root.is_file():
        return Corpus.from_files(str(path), [(root.name, root.read_bytes())])
    if not root.is_dir():
        raise InputError(
            f"source={str(path)!r} is no folder or file; give an existing path, or 'stdlib'"
        )
    names = sorted(_text_files(root))
    if not names:
        raise InputError(
            f"source={str(path)!r} holds no text file; text is what ends in "
            f"{' '.join(sorted(TEXT_SUFFIXES))}, and a single file may have any name"
        )
    return Corpus.from_files(str(path), ((name, (root / name).read_bytes()) for name in names))


def _text_files(root: Path) -> Iterator[str]:
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") for part in parts)
        if path.suffix.lower() in TEXT_SUFFIXES and not hidden and path.is_file():
            yield "/".join(parts)
