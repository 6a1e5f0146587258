"""Output that ends no run: its reader may go, its disk fill up, its encoding lack a character."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import Any, TextIO, cast


def forgiving(stream: TextIO | None, *losses: type[OSError]) -> TextIO:
    """`stream`, but from the first of these errors on it swallows everything; so does None.

    Other errors are raised, once. A character that its encoding lacks is written as "?".

    >>> with Path("ascii.txt").open("w", encoding="ascii") as file:
    ...     print("2–3", file=forgiving(file, BrokenPipeError))
    >>> Path("ascii.txt").read_text()
    '2?3\\n'
    """
    # Python has None where a process began with the descriptor closed.
    return cast(TextIO, _Forgiving(stream or cast(TextIO, _Nowhere()), losses))


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


class _Forgiving:
    def __init__(self, stream: TextIO, losses: tuple[type[OSError], ...]) -> None:
        self._stream = stream
        self._losses = losses

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            known = text.encode(self._stream.encoding, "replace").decode(self._stream.encoding)
            return self.write(known)
        except OSError as error:
            self._lose(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        # What is still in the buffer would fail again, at the latest when Python ends.
        with contextlib.suppress(OSError), Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())
        if not isinstance(error, self._losses):
            raise error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
