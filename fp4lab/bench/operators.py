"""The rows of the numeric operators: each at float32 against a copy, and at bfloat16.

The copy is `y.copy_(x)` of the same matrix in the same run. It writes into memory that is there, so
the C operators do, too (`results_reused`): what the system takes to give out new memory, page by
page, can be longer than the operator and is no property of it. A line beside tells the time of a
call whose result is new. On a GPU the value is the share of the copy's bandwidth, counting every
byte that must be read and written once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

import fp4lab
from fp4lab import formats
from fp4lab.bench.measure import Run
from fp4lab.bench.results import Target
from fp4lab.bench.rows import Claim, Job, Row, Setting, dtype_name
from fp4lab.formats import ELEMENTS, BlockFormat, ElementType, Hadamard, Rounding, Selection
from fp4lab.kernels import backends, ops
from fp4lab.kernels.native.memory import Pieces, results_reused
from fp4lab.kernels.schema import Quantizer

GROUP = "operators"
#: in the name of the line of a call that allocates what it returns
NEW_RESULT = "new result"
GPU_SHARE = Target(0.85, "at least")
OVER_FLOAT32 = Target(1.4)
DTYPES = (torch.float32, torch.bfloat16)
#: makes the call for a matrix; the second is the bytes it reads
Make: TypeAlias = Callable[[Tensor], tuple[Run, int]]


@dataclass(frozen=True)
class Operator:
    """An operator as it is timed, and the most that float32 may take of the copy's time."""

    name: str
    make: Make
    limit: float | None = None


def fake_quantizing(fmt: BlockFormat, rounding: Rounding = Rounding.NEAREST) -> Make:
    """`fp4lab.fake_quantize`, its amax included."""

    def make(x: Tensor) -> tuple[Run, int]:
        noise = None if rounding == Rounding.NEAREST else fp4lab.noise_state(0).to(x.device)
        return lambda: fp4lab.fake_quantize(x, fmt, rounding=rounding, noise=noise), x.nbytes

    return make


def quantizing(fmt: BlockFormat, **how: Any) -> Make:
    """`fp4lab.quantize` to codes and scales, its amax included."""
    return lambda x: (lambda: fp4lab.quantize(x, fmt, **how), x.nbytes)


def _dequantizing(x: Tensor) -> tuple[Run, int]:
    q = fp4lab.quantize(x, formats.NVFP4)
    return lambda: fp4lab.dequantize(q, x.dtype), q.nbytes


def _casting(element: ElementType) -> Make:
    return lambda x: (lambda: fp4lab.cast(x, element), x.nbytes)


def _operand_of_columns(x: Tensor) -> tuple[Run, int]:
    """What the columns give to a product, in x's dtype: transformed, rounded to nearest."""
    quantizer = Quantizer(formats.NVFP4, True, _TRANSFORM).text
    return lambda: ops.operand(x, quantizer, x.dtype, False), x.nbytes


def _both_orientations(x: Tensor) -> tuple[Run, int]:
    """What a training step makes of a gradient: rows, and columns with Hadamard, both rounded
    stochastically, as operands in x's dtype.
    """
    rows = Quantizer(formats.NVFP4, noise_bits=8).text
    columns = Quantizer(formats.NVFP4, True, _TRANSFORM, 8).text
    noise = (fp4lab.noise_state(0).to(x.device), 1, 2)
    return lambda: ops.operand_pair(x, rows, columns, x.dtype, False, *noise), x.nbytes


_TRANSFORM = Hadamard(16, formats.NVFP4_SIGNS)
_MSE = formats.NVFP4_4OVER6.replace(name="nvfp4_4over6_mse", selection=Selection.MSE)
_CASTS = [e for e in ELEMENTS.values() if e.signed and e.has_zero and e.bits in (6, 8)]

OPERATORS = (
    Operator("fake-quantize nvfp4", fake_quantizing(formats.NVFP4), 2.0),
    Operator("fake-quantize nvfp4_16x16", fake_quantizing(formats.NVFP4_16X16), 2.0),
    *(
        Operator(
            f"fake-quantize {fmt.name} stochastic8",
            fake_quantizing(fmt, Rounding.STOCHASTIC_8),
            2.7,
        )
        for fmt in (formats.NVFP4, formats.NVFP4_16X16)
    ),
    Operator("quantize nvfp4", quantizing(formats.NVFP4), 2.1),
    Operator("quantize nvfp4_16x16", quantizing(formats.NVFP4_16X16), 2.1),
    Operator("operand nvfp4 columns hadamard16", _operand_of_columns, 3.2),
    Operator(
        "quantize nvfp4 columns hadamard16",
        quantizing(formats.NVFP4, axis=-2, hadamard=_TRANSFORM),
    ),
    Operator("operands nvfp4 both orientations", _both_orientations, 6.0),
    Operator("dequantize nvfp4", _dequantizing, 0.9),
    *(Operator(f"cast {element.name}", _casting(element), 1.2) for element in _CASTS),
    *(
        Operator(f"fake-quantize {fmt.name}", fake_quantizing(fmt), 2.0)
        for fmt in (
            *(formats.MXFP4, formats.MXFP8_E4M3, formats.MXFP8_E5M2),
            *(formats.FP8_1X128_E4M3, formats.FP8_128X128_E4M3),
        )
    ),
    # what the recipe that others are held against does to every operand
    Operator("fake-quantize bf16", fake_quantizing(formats.BF16)),
    Operator("fake-quantize nvfp4_4over6_mae", fake_quantizing(formats.NVFP4_4OVER6), 5.0),
    Operator("fake-quantize nvfp4_4over6_mse", fake_quantizing(_MSE), 5.0),
)


def rows(*, gpu: bool = False) -> list[Row]:
    """The copy, then every operator."""
    found = [Row(group=GROUP, name="copy", job=_copy_job, sized=False)]
    for operator in OPERATORS:
        limit = None if operator.limit is None else Target(operator.limit)
        target = GPU_SHARE if gpu else limit
        job = partial(_operator_job, operator=operator)
        found.append(Row(group=GROUP, name=operator.name, job=job, target=target))
    return found


def bytes_of(result: object) -> int:
    """Bytes of a tensor, a quantized tensor, or several."""
    if isinstance(result, (tuple, list)):
        return sum(map(bytes_of, result))
    return int(getattr(result, "nbytes", 0))


def in_place(run: Run) -> Run:
    """The same call, writing its results where those of its last call were."""
    pieces: Pieces = {}

    def call() -> object:
        with results_reused(pieces):
            return run()

    return call


def copying(x: Tensor) -> Run:
    """The copy that operators are held against."""
    y = torch.empty_like(x)
    return lambda: y.copy_(x)


def _copy_job(setting: Setting, row: Row) -> Job:
    runs, claims = {}, []
    for dtype in DTYPES:
        name = dtype_name(dtype)
        x = setting.matrix(setting.size, setting.size, dtype=dtype)
        runs[name] = copying(x)
        claims.append(Claim(name=f"{row.name}, {name}", of=name, moved=2 * x.nbytes))
    return Job(runs=runs, claims=claims)


def _operator_job(setting: Setting, row: Row, *, operator: Operator) -> Job:
    """An operator at both dtypes, and at float32 with a new result."""
    runs: dict[str, Run] = {}
    claims = []
    for dtype in DTYPES:
        name = dtype_name(dtype)
        x = setting.matrix(setting.size, setting.size, dtype=dtype)
        copy, moved = f"copy {name}", 2 * x.nbytes
        runs[copy] = copying(x)
        run, reads = operator.make(x)
        runs[name] = in_place(run)
        total = reads + bytes_of(run())
        claims.append(_claim(row, name, moved=total, copy=(copy, moved), device=x.device))
        if dtype == torch.float32 and backends.chosen(x.device) == "native":
            runs[NEW_RESULT] = run
            words = f"{row.name}, {NEW_RESULT}, {name}"
            claims.append(Claim(name=words, of=NEW_RESULT, to=copy, against="copy"))
    return Job(runs=runs, claims=claims)


def _claim(
    row: Row, name: str, *, moved: int, copy: tuple[str, int], device: torch.device
) -> Claim:
    claim = Claim(name=f"{row.name}, {name}", of=name, moved=moved, roof=copy)
    if device.type == "cuda":
        share = moved / copy[1]
        return replace(
            claim,
            to=copy[0],
            against="copy's bandwidth",
            target=row.target,
            faster=True,
            factor=share,
        )
    if name == "float32":
        return replace(claim, to=copy[0], against="copy", target=row.target)
    return replace(claim, to="float32", against="float32 time", target=OVER_FLOAT32)
