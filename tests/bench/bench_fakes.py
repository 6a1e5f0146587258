"""Findings made up for tables, figures and files."""

from __future__ import annotations

from fp4lab.bench.measure import Spread
from fp4lab.bench.results import Findings, Line, Target

MACHINE = {
    "cpu": "Some CPU",
    "gpu": None,
    "isa": "AVX512",
    "avx512_bf16": True,
    "amx": False,
    "cores": 2,
    "threads": 1,
    "load_average": [0.5, 0.4, 0.3],
    "torch": "2.13.0",
    "cuda": None,
    "fp4lab": "0.1.0",
    "python": "3.11.2",
    "system": "linux x86_64",
    "backend": "native",
    "instruction_sets": ["v2", "v3", "v4"],
    "instruction_set": "v3",
    "backend_reason": "",
    "date": "2026-01-02",
}
SETTINGS = {"size": 4096, "rounds": 5, "device": "cpu", "clock": "CPU time"}
LINES = (
    Line(group="operators", name="copy, float32", seconds=Spread(2e-3, 1e-3, 3e-3), moved=10**8),
    Line(
        group="operators",
        name="cast e4m3, float32",
        seconds=Spread(4e-3, 3e-3, 5e-3),
        value=Spread(2.0, 1.9, 2.1),
        against="copy",
        target=Target(1.2),
        moved=10**8,
        roof=5e10,
    ),
    Line(
        group="products",
        name="linear forward",
        seconds=Spread(0.5, 0.4, 0.6),
        value=Spread(1.05, 1.0, 1.2),
        against="bfloat16 matmul",
        target=Target(1.1),
        flops=10**11,
        roof=2.1e11,
    ),
    Line(
        group="limits",
        name="call of fake-quantize",
        seconds=Spread(2e-5, 1e-5, 3e-5),
        value=Spread(20.0, 10.0, 30.0),
        unit="us",
        target=Target(25),
    ),
    Line(group="products", name="matvec", target=Target(3.5, "at least"), left_out="not there"),
)


def findings(*lines: Line) -> Findings:
    return Findings(
        machine=MACHINE,
        settings=SETTINGS,
        lines=lines or LINES,
        missing={"torchao": "not installed; pip install torchao"},
    )
