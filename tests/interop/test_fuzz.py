"""Random damage to the headers of files: see fuzz_headers.py."""

from __future__ import annotations

import os
import random
import tracemalloc
from pathlib import Path

import pytest

from tests.interop.fuzz_headers import fuzz


@pytest.mark.slow
def test_damaged_files_are_read_or_refused_in_one_line(tmp_path: Path) -> None:
    """FP4LAB_FUZZ_SECONDS makes it longer, FP4LAB_FUZZ_SEED repeats one run."""
    seconds = float(os.environ.get("FP4LAB_FUZZ_SECONDS", "45"))
    seed = int(os.environ.get("FP4LAB_FUZZ_SEED", random.SystemRandom().randrange(2**32)))
    print(f"seed {seed}: FP4LAB_FUZZ_SEED={seed} repeats this run")
    tracemalloc.start()
    try:
        cases, read = fuzz(seconds, seed, tmp_path)
    finally:
        tracemalloc.stop()
    print(f"{cases} cases, {read} could be read")
    assert 0 < read < cases
