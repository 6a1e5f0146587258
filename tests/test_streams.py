from __future__ import annotations

import doctest
import errno
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

from fp4lab import cli, streams
from fp4lab.streams import forgiving
from fp4lab.train.listeners import progress


def test_docstring_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(streams).failed == 0


def without_reader() -> TextIO:
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", encoding="utf-8", buffering=1)


def test_what_is_forgiven_is_quiet_from_then_on_and_the_rest_is_raised_once() -> None:
    with without_reader() as stream:
        for _ in range(3):
            print("line", file=forgiving(stream, BrokenPipeError), flush=True)
    with open("/dev/full", "w", buffering=1) as stream:
        out = forgiving(stream, BrokenPipeError)
        with pytest.raises(OSError, match="No space left") as caught:
            print("line", file=out)
        assert caught.value.errno == errno.ENOSPC
        print("line", file=out, flush=True)
    print("line", file=forgiving(None, OSError), flush=True)


def test_a_character_that_the_encoding_lacks() -> None:
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, "latin-1") as stream:
        print("é – é", file=forgiving(stream), flush=True)
        assert raw.getvalue() == "é ? é\n".encode("latin-1")


def test_progress_without_a_reader_is_quiet() -> None:
    event = {"kind": "notice", "step": 1, "text": "said"}
    with without_reader() as stream, progress(3, stream=stream) as listen:
        for _ in range(2):
            listen(event)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        ("| true; exit ${PIPESTATUS[0]}", 0, ""),
        ("2>&1 | true; exit ${PIPESTATUS[0]}", 0, ""),
        ("2>/dev/full", 0, ""),
        ("2>&- >&-", 0, ""),
        (">/dev/full", 2, "fp4lab: No space left on device; what was saved before is intact"),
    ],
)
def test_a_command_without_an_output(redirection: str, status: int, said: str) -> None:
    """In a shell, for Python itself writes once more at its end."""
    code = (
        "import sys, time; from fp4lab import cli;"
        "cli.COMMANDS['train'] = (lambda words: time.sleep(0.2) or print('out')"
        " or print('err', file=sys.stderr) or 0, '');"
        "sys.exit(cli.main(['train']))"
    )
    done = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -c "{code}" {redirection}'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert done.stderr.replace("err\n", "").startswith(said)
    assert said or done.stderr in {"err\n", ""}
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_the_report_of_a_comparison_in_latin_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "latin-1"))
    monkeypatch.setitem(cli.COMMANDS, "report", (lambda words: print("1–2") or 0, ""))
    assert cli.main(["report"]) == 0
    assert raw.getvalue() == b"1?2\n"
