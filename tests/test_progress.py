"""Progress is a bar on a terminal, lines elsewhere, and ends nothing where it cannot be shown."""

from __future__ import annotations

import io

import pytest

from fp4lab import progress


def test_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    stream = io.StringIO()
    with progress.shown("reading", 5000, stream=stream) as advance:
        for part in range(25):
            now += 1.0
            advance(200, "b.weight" if part > 15 else "")
    assert stream.getvalue().splitlines() == [
        "reading: 2,000 of 5,000 bytes", "reading: 4,000 of 5,000 bytes, b.weight",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("total", "unit", "text"),
    [
        (5000, "bytes", "5.0/5.0 kB"),
        (5000, "tokens", "5,000/5,000 tokens"),
        (None, "tokens", "5,000 tokens"),
    ],
)
def test_a_terminal_gets_a_bar(
    total: int | None, unit: str, text: str, terminal: io.StringIO
) -> None:
    with progress.shown("reading", total, unit=unit, stream=terminal) as advance:
        advance(2000, "a.weight")
        advance(3000, "[red]b[/red].weight")
    assert text in terminal.getvalue()
    assert "[red]b[/red].weight" in terminal.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_stream_that_breaks_ends_nothing(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, terminal: io.StringIO
) -> None:
    def broken(text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    stream = terminal if is_terminal else io.StringIO()
    monkeypatch.setattr(stream, "write", broken, raising=False)
    parts = 0
    with progress.shown("reading", 2, stream=stream) as advance:
        for _ in range(2):
            advance(1)
            parts += 1
    assert parts == 2
