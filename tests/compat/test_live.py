"""Tools that are installed here, against the formats that reproduce them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("live.py")
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["compressed_tensors", "modelopt"])
def test_random_tensors_have_the_tools_bytes(tool: str) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"needs {tool}, which is not installed")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), tool],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    counts = json.loads(run.stdout.splitlines()[-1])
    assert counts["compared"] > 100_000
    assert counts["different"] == 0
