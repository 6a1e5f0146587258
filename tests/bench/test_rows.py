"""Every row's work is set up at a small size, called once, and gives what it is said to give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fp4lab
from fp4lab import formats
from fp4lab.bench import limits, operators, products, run
from fp4lab.bench.rows import Claim, Job, LeftOutError, Row, Setting, pick
from fp4lab.errors import InputError
from fp4lab.kernels import ops
from fp4lab.kernels.native import library

SMALL = Setting(size=128)
ROWS = {row.name: row for row in run.all_rows()}


def stopwatch(run: Callable[[], object], calls: int) -> float:
    """One call is made, and each took a second."""
    run()
    return float(calls)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_gives_lines_with_the_targets(name: str) -> None:
    row = ROWS[name]
    lines = run.measure_row(row, SMALL, stopwatch=stopwatch)
    assert lines
    assert all(line.left_out == "" for line in lines)
    assert all(line.group == row.group for line in lines)
    assert all(line.name.startswith(name) for line in lines)
    assert lines[0].target == row.target
    assert all(line.met is None for line in lines if row.sized)


def test_every_line_of_the_two_tables_has_its_target() -> None:
    limits_of = {name: str(row.target) for name, row in ROWS.items() if row.target}
    assert limits_of["fake-quantize nvfp4"] == limits_of["fake-quantize nvfp4_16x16"] == "at most 2"
    assert limits_of["fake-quantize nvfp4 stochastic8"] == "at most 2.7"
    assert limits_of["quantize nvfp4_16x16"] == "at most 2.1"
    assert limits_of["operand nvfp4 columns hadamard16"] == "at most 3.2"
    assert limits_of["operands nvfp4 both orientations"] == "at most 6"
    assert limits_of["dequantize nvfp4"] == "at most 0.9"
    casts = {"cast e4m3", "cast e5m2", "cast e2m3", "cast e3m2"}
    assert {limits_of[name] for name in casts} == {"at most 1.2"}
    assert {name for name in ROWS if name.startswith("cast")} == casts
    assert limits_of["fake-quantize nvfp4_4over6_mse"] == "at most 5"
    assert limits_of["linear forward"] == "at most 1.1"
    assert limits_of["gpt step float32 model"] == "at most 1.35"
    assert "gpt step bfloat16" not in limits_of
    assert limits_of["packed matvec int8"] == "at least 6"
    assert limits_of["call of fake-quantize nvfp4"] == "at most 25"


def values(operator: operators.Operator, x: Tensor) -> Tensor:
    made: Any = operator.make(x)[0]()
    return made.dequantize() if isinstance(made, fp4lab.QuantizedTensor) else made


def check_operands(operator: operators.Operator, x: Tensor) -> None:
    """The operands are those of the codes that `quantize` gives."""
    both = "both" in operator.name
    rounding = formats.Rounding.STOCHASTIC_8 if both else formats.Rounding.NEAREST
    how: dict[str, Any] = {"rounding": rounding, "noise": fp4lab.noise_state(0) if both else None}
    transform = formats.Hadamard(16, formats.NVFP4_SIGNS)
    columns = fp4lab.quantize(x, formats.NVFP4, axis=-2, hadamard=transform, stream=2 * both, **how)
    wanted = [(columns, True)]
    if both:
        wanted.insert(0, (fp4lab.quantize(x, formats.NVFP4, stream=1, **how), False))
    made: Any = operator.make(x)[0]()
    for (q, transposed), values, epilogue in zip(wanted, made[::2], made[1::2], strict=True):
        stored = (q.codes, q.scales, q.amax)
        expected = ops.stored_operand(*stored, formats.NVFP4.definition, 128, x.dtype)
        assert torch.equal(values, expected[0])
        assert torch.equal(epilogue, expected[1])
        assert (values.stride(0) == 1) is transposed


@pytest.mark.parametrize("operator", operators.OPERATORS, ids=lambda o: o.name)
@pytest.mark.parametrize("dtype", operators.DTYPES)
def test_an_operator_row_does_what_its_name_says(
    operator: operators.Operator, dtype: torch.dtype
) -> None:
    x = SMALL.matrix(128, 128, dtype=dtype)
    words = operator.name.split()
    if words[0].startswith("operand"):
        check_operands(operator, x)
        return
    y = values(operator, x)
    if words[0] == "cast":
        assert torch.equal(y, fp4lab.cast(x, formats.get_element(words[1])))
        return
    if "hadamard16" in words:
        signs = torch.tensor(formats.NVFP4_SIGNS)
        q = fp4lab.quantize(
            x, formats.NVFP4, axis=-2, hadamard=formats.Hadamard(16, tuple(signs.tolist()))
        )
        assert torch.equal(y, q.dequantize())
        return
    fmt = (
        operators._MSE if words[1].endswith("_mse") else formats.get(words[1].removesuffix("_mae"))
    )
    how = {}
    if "stochastic8" in words:
        how = {"rounding": formats.Rounding.STOCHASTIC_8, "noise": fp4lab.noise_state(0)}
    expected = fp4lab.fake_quantize(x, fmt, **how)
    assert torch.equal(y.to(dtype), expected)
    assert operator.make(x)[1] in {x.nbytes, fp4lab.quantize(x, fmt).nbytes}


def test_the_bytes_of_a_row_are_those_read_and_written() -> None:
    lines = run.measure_row(ROWS["quantize nvfp4"], SMALL, stopwatch=stopwatch)
    packed = 128 * 128 // 2 + 128 * 8 + 4
    new = [line for line in lines if "new result" in line.name]
    lines = [line for line in lines if line not in new]
    assert [line.moved for line in lines] == [128 * 128 * 4 + packed, 128 * 128 * 2 + packed]
    assert [line.roof for line in lines] == [128 * 128 * 8, 128 * 128 * 4]
    assert [line.against for line in lines] == ["copy", "float32 time"]
    assert all(line.target is None and line.roof is None for line in new)


@pytest.mark.skipif(not library.instruction_sets(), reason="there is no C library here")
def test_an_operator_is_timed_into_memory_that_is_there_and_with_a_new_result() -> None:
    row = ROWS["cast e4m3"]
    job = row.prepare(SMALL)
    assert set(job.runs) == {"copy float32", "float32", "new result", "copy bfloat16", "bfloat16"}

    def place(name: str) -> int:
        result = job.runs[name]()
        assert isinstance(result, Tensor)
        return result.data_ptr()

    assert len({place("float32") for _ in range(3)}) == 1
    assert place("new result") != place("float32")
    words = [(claim.name, claim.target) for claim in job.claims]
    assert words[1] == ("cast e4m3, new result, float32", None)
    with fp4lab.backend("reference"):
        assert "new result" not in row.prepare(SMALL).runs


def test_a_row_that_fails_is_a_line_and_the_others_go_on() -> None:
    def fail(*_: object) -> Job:
        raise ZeroDivisionError("by nought")

    def fail_later(*_: object) -> Job:
        return Job(runs={"a": fail}, claims=[Claim(name="n", of="a")])

    broken = [
        Row(group="limits", name=name, job=job, target=None)
        for name, job in (("sets up", fail), ("runs", fail_later))
    ]
    last = ROWS["call of fake-quantize nvfp4"]
    found = run.measure_rows([*broken, last], SMALL)
    assert [line.left_out for line in found.lines] == 2 * ["ZeroDivisionError: by nought"] + [""]
    assert found.stopped == ""


def test_a_copy_copies() -> None:
    x = SMALL.matrix(4, 4)
    y = operators.copying(x)()
    assert isinstance(y, Tensor)
    assert y.data_ptr() != x.data_ptr()
    assert torch.equal(x, y)


def test_on_a_gpu_the_value_is_the_share_of_the_copys_bandwidth() -> None:
    device = torch.device("cuda")
    claim = operators._claim(
        operators.rows(gpu=True)[1], "float32", moved=50, copy=("copy", 100), device=device
    )
    # half the bytes in half the time is the same bandwidth
    rounds = run.Rounds({"float32": (1.0,), "copy": (2.0,)})
    line = run._line(claim, ROWS["copy"], rounds, judged=True)
    assert line.value is not None
    assert line.value.median == 1.0
    assert str(line.target) == "at least 0.85"
    assert {row.group for row in run.all_rows(gpu=True)} == {"operators", "products"}


@pytest.mark.parametrize("backward", [False, True])
def test_a_layer_row_multiplies_the_same_tensors(backward: bool) -> None:
    job = products._linear_job(SMALL, ROWS["linear forward"], divide=(2, 1, 1), backward=backward)
    ours, plain = (job.runs[name]() for name in ("ours", "matmul"))
    pairs = zip(ours, plain, strict=True) if backward else [(ours, plain)]
    for a, b in pairs:
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        # NVFP4 leaves some 10 % of noise, and no less
        assert 0.01 < (a.float() - b.float()).norm() / b.float().norm() < 0.3
    (claim,) = job.claims
    assert claim.flops == 2 * 64 * 128 * 128 * (3 if backward else 1)


@pytest.mark.parametrize("autocast", [False, True])
def test_an_update_trains_the_model(autocast: bool) -> None:
    shape = products._gpt_shape(4096)
    assert shape == products.get_preset("gpt-small")
    model = products._gpt(products._gpt_shape(128), "nvfp4")
    before = [p.clone() for p in model.parameters()]
    tokens = torch.randint(256, (1, 17), generator=torch.Generator().manual_seed(0))
    products._update(model, tokens, autocast=autocast)()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_autocast_is_left_out_where_it_is_not_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Setting, "matmul_dtype", torch.float32)
    (line,) = run.measure_row(ROWS["gpt step bfloat16"], SMALL, stopwatch=stopwatch)
    assert line.left_out == "this CPU has no bfloat16 instructions"


def test_grouped_products_are_those_of_the_experts() -> None:
    job = products._grouped_job(SMALL, ROWS["grouped matmul"])
    ours, plain = (job.runs[name]() for name in ("ours", "matmul"))
    assert isinstance(ours, Tensor)
    assert isinstance(plain, list)
    expected = torch.cat(plain).float()
    assert ours.dtype == SMALL.matmul_dtype
    assert 0.01 < (ours.float() - expected).norm() / expected.norm() < 0.3


def test_packed_weights_are_multiplied_exactly() -> None:
    (error,) = run.measure_row(ROWS["packed matvec error"], SMALL, stopwatch=stopwatch)
    assert error.value is not None
    # float32 sums of exact products
    assert 0 < error.value.median < 1e-6


def test_the_memory_of_a_call_is_what_it_needs_beyond_its_result() -> None:
    mib = 1 << 20
    try:
        kept = limits.peak_beyond_result(lambda: torch.ones(16 * mib // 4))
        passing = limits.peak_beyond_result(
            lambda: torch.ones(16 * mib // 4) + torch.ones(16 * mib // 4)
        )
    except LeftOutError:
        pytest.skip("the system does not tell")
    # pages are counted in batches by the kernel
    assert kept < mib
    assert 31 * mib < passing < 33 * mib


def test_a_system_that_tells_no_peak_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError("read-only")

    monkeypatch.setattr(limits.Path, "write_text", refuse)
    with pytest.raises(LeftOutError, match="peak memory: read-only"):
        limits.peak_beyond_result(lambda: None)


def test_one_core_has_no_second_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.os, "cpu_count", lambda: 1)
    (line,) = run.measure_row(ROWS["two threads copy"], SMALL)
    assert line.left_out == "there is one core here"


@pytest.mark.parametrize(("threads", "judged"), [(1, True), (2, False)])
def test_targets_are_those_of_one_thread(threads: int, judged: bool) -> None:
    setting = Setting(size=128, threads=threads)
    (line,) = run.measure_row(ROWS["call of fake-quantize nvfp4"], setting, stopwatch=stopwatch)
    assert line.judged is judged
    # a second is more than 25 microseconds
    assert line.met is (False if judged else None)


def test_threads_are_put_back_after_the_rows() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    claim = Claim(name="n", of="a", to="b")
    row = Row(
        group="limits",
        name="n",
        job=lambda *_: Job(
            runs={"a": lambda: seen.append(torch.get_num_threads()), "b": lambda: None},
            claims=[claim],
        ),
    )
    found = run.measure_rows([row], Setting(size=128, threads=2))
    assert set(seen) == {2}
    assert torch.get_num_threads() == before
    assert found.settings["clock"] == "wall clock"
    assert found.machine["threads"] == 2


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("gpt", ["gpt step float32 model", "gpt step bfloat16"]),
        ("cast e4m3, gpt*", ["cast e4m3", "gpt step float32 model"]),
        ("*e?m3", ["cast e2m3", "cast e4m3", "fake-quantize mxfp8_e4m3"]),
    ],
)
def test_patterns_pick_rows(patterns: str, names: list[str]) -> None:
    rows = pick(list(ROWS.values()), patterns)
    assert {row.name for row in rows} >= set(names)
    assert [row.name for row in rows] == [name for name in ROWS if name in {r.name for r in rows}]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ("hadamard61", r"ops='hadamard61' picks no row; did you mean 'hadamard16'\?"),
        ("gpt,linaer", r"ops='linaer' picks no row; did you mean 'linear'"),
        ("", "ops=.. picks no row; words are bf16, bfloat16, both, call, cast, "),
    ],
)
def test_a_pattern_without_rows_is_an_error(patterns: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pick(list(ROWS.values()), patterns)
