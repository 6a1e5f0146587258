"""Triton's kernels compile for sm_90, sm_100 and sm_120, to the instructions that are meant.

One process compiles all of them, without a GPU, and keeps what it compiled: a minute and a half the
first time, seconds after it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip(
    "triton", reason="Triton is not installed (it is there for Linux only)"
)

SCRIPT = Path(__file__).with_name("compile_all.py")
ROOT = SCRIPT.parents[3]
#: an instruction that must be there, by the case and the capability
MEANT = {
    ("quantize native", 100): "cvt.rn.satfinite.e2m1x2.f32",
    ("quantize native", 120): "cvt.rn.satfinite.e2m1x2.f32",
    ("quantize native stochastic", 100): "cvt.rs.satfinite.e2m1x4.f32",
    ("product codes", 90): "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16",
    ("product mx", 90): "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16",
    ("product bf16", 90): "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16",
    ("product codes", 100): "tcgen05.mma.cta_group::1.kind::f16",
    ("product grouped", 90): "wgmma.mma_async",
    ("product grouped", 100): "tcgen05.mma.cta_group::1.kind::f16",
    ("product grouped codes", 90): "wgmma.mma_async",
    ("product grouped codes", 100): "tcgen05.mma.cta_group::1.kind::f16",
    ("scaled nvfp4", 100): "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale",
    ("scaled nvfp4", 120): ".kind::mxf4nvf4.block_scale.scale_vec::4X",
    ("scaled mxfp4", 100): "tcgen05.mma.cta_group::1.kind::mxf4.block_scale",
    ("scaled mxfp4", 120): ".kind::mxf4nvf4.block_scale.scale_vec::2X",
}
#: rounded to nearest and written as they are stored, columns never change their thread
NO_EXCHANGE = "quantize columns values"
#: bytes that Triton 3.6's assembler for sm_100 rather spills of columns than take more registers
OLD_SPILL = 16


def problems(record: dict[str, Any]) -> list[str]:
    """What is wrong with a compiled kernel."""
    case, capability = record["case"], record["capability"]
    wrong = [f"{name} is forbidden" for name in record["forbidden"]]
    meant, there = MEANT.get((case, capability), ""), record["instructions"]
    if (
        not record["kernel"].startswith("amax")
        and not any(meant in name for name in there)
        and meant
    ):
        wrong.append(f"{meant} is missing, {there} are there")
    exact = not case.startswith(("product", "scaled"))
    version = tuple(map(int, triton.__version__.split(".")[:2]))
    columns = record["kernel"].startswith("columns") and capability == 100
    allowed = OLD_SPILL if columns and version < (3, 9) else 0
    counts = exact or (case.startswith("product") and capability == 90)
    if record["stack"] > allowed and counts:
        wrong.append(f"{record['stack']} bytes of stack")
    if case == NO_EXCHANGE and record["kernel"] == "columns_kernel" and record["barriers"]:
        wrong.append(f"{record['barriers']} barriers: threads exchange elements")
    return [f"{case} ({record['kernel']}, sm_{capability}): {text}" for text in wrong]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kernels_compile_to_the_instructions_that_are_meant() -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    environment = {name: value for name, value in os.environ.items() if "TRITON" not in name}
    environment["TRITON_CACHE_DIR"] = str(cache / "fp4lab" / f"triton-{triton.__version__}")
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout[-300:], done.stderr[-3000:])
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(record["case"], record["capability"]) for record in records} >= set(MEANT)
    assert [text for record in records for text in problems(record)] == []


def test_a_wrong_kernel_would_be_found() -> None:
    record = {
        "case": "quantize native",
        "kernel": "quantize_kernel",
        "capability": 100,
        "instructions": ["cvt.rn.satfinite.e2m1x2.f32"],
        "forbidden": [],
        "stack": 0,
        "barriers": 3,
    }
    assert problems(record) == []
    assert (
        len(problems({**record, "instructions": [], "forbidden": ["fma.rn.f32"], "stack": 8})) == 3
    )
    scaled = {**record, "case": "scaled nvfp4", "instructions": [], "stack": 8}
    assert len(problems(scaled)) == 1
    columns = {**record, "case": "quantize columns values", "kernel": "columns_kernel"}
    assert len(problems(columns)) == 1
