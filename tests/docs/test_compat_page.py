"""docs/compat.md is what its script writes, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import update_compat

PAGE = update_compat.PAGE.read_text()


def test_the_tables_are_up_to_date() -> None:
    for section in update_compat.sections():
        assert section.strip() in PAGE, "run python -m docs.update_compat"


@pytest.mark.slow
def test_the_counts_are_up_to_date() -> None:
    assert update_compat.page() == PAGE, "run python -m docs.update_compat"


def test_every_recorded_file_is_counted() -> None:
    folder = Path(update_compat.arrays.FOLDER)
    files = {path.name for path in folder.glob("*.npz")} - {"inputs.npz"}
    assert set(re.findall(r"^\| `(\w+\.npz)`", PAGE, re.MULTILINE)) == files


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block, {})
    printed = capsys.readouterr().out
    assert "ENCODE" in printed
    assert "scale byte of a block of zeros: 0x20" in printed
