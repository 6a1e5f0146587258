"""Makes the fakes importable by name, here and in the processes that the tests spawn."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timing pass as short as it can be."""
    monkeypatch.setattr("fp4lab.studies.timing.MOST_ROUNDS", 3)
