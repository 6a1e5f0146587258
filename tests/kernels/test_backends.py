"""Every backend gives the reference's bits, and a choice that cannot be had is refused.

The C operators are forced to each instruction set that the processor has; torch's groups of rows
are made small enough to be several.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fp4lab import formats as f
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat
from fp4lab.functional import fake_quantize, quantize
from fp4lab.kernels import backends, ops
from fp4lab.kernels.native import build, library
from fp4lab.kernels.native.library import instruction_sets
from fp4lab.kernels.quantize import chunked
from fp4lab.kernels.schema import Quantizer, is_compiled
from tests.kernels.matrices import KINDS, Draw, any_bits
from tests.kernels.parity import CASES, DTYPES, FORMATS, STATE, same

SETS = [f"native-{name}" for name in instruction_sets()]


def results(x: Tensor, fmt: BlockFormat, how: tuple[Any, ...]) -> list[Tensor]:
    """What every operator makes of a matrix."""
    quantizer, *noise = how
    stored = ops.quantize(x, quantizer, *noise)
    columns = x.numel() // max(stored[0].shape[0], 1)
    made = [
        *stored,
        ops.fake_quantize(x, quantizer, *noise),
        *ops.operand(x, quantizer, torch.float32, False, *noise),
        ops.amax(x, quantizer),
        *ops.stored_operand(*stored, fmt.definition, columns, torch.float32),
        *(ops.dequantize(*stored, fmt.definition, columns, dtype) for dtype in DTYPES),
    ]
    if fmt.operand_fits_bf16:
        made += ops.operand(x, quantizer, torch.bfloat16, False, *noise)
        made += ops.operand(x, quantizer, torch.bfloat16, True, *noise)
    return made


def drawn(
    kind: Draw, fmt: BlockFormat, cases: list[Any]
) -> Iterator[tuple[Tensor, tuple[Any, ...]]]:
    """A matrix of each case that can be computed, and how."""
    generator = torch.Generator().manual_seed(0)
    for shape, transposed, noise_bits, transform, dtype in cases:
        x_MK = kind(generator, *shape).to(dtype)
        if not transform or x_MK.shape[0 if transposed else 1] % transform.size == 0:
            quantizer = Quantizer(fmt, transposed, transform, noise_bits).text
            yield x_MK, (quantizer, STATE if noise_bits else None, 3, None, 5)


def check(kind: Draw, fmt: BlockFormat, cases: list[Any], names: list[str]) -> None:
    checked = 0
    for x_MK, how in drawn(kind, fmt, cases):
        with backends.backend("reference"):
            expected = results(x_MK, fmt, how)
        for name in names:
            with backends.backend(name):
                found = results(x_MK, fmt, how)
            equal = [same(*two) for two in zip(expected, found, strict=True)]
            assert all(equal), (name, x_MK.shape, x_MK.dtype, how, equal)
            checked += 1
    assert checked


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "GROUP", 1024)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("kind", KINDS)
def test_backends_equal_the_reference(kind: Draw, fmt: BlockFormat) -> None:
    """A few cases, other ones for each format and kind of numbers."""
    start = (FORMATS.index(fmt) + 5 * KINDS.index(kind)) % 83
    check(kind, fmt, CASES[start::83], ["native", "torch"])


@pytest.mark.slow
@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("fmt", filter(is_compiled, FORMATS), ids=lambda fmt: fmt.name)
def test_every_instruction_set_equals_the_reference(fmt: BlockFormat) -> None:
    """More cases than above, again other ones for each."""
    for number, kind in enumerate(KINDS):
        check(kind, fmt, CASES[(5 * FORMATS.index(fmt) + number) % 29 :: 29], SETS)


def test_given_amax_row_ids_and_strides() -> None:
    x_MK = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    row_ids = torch.randperm(64, generator=torch.Generator().manual_seed(2)) + 2**32 - 7
    views = (x_MK, x_MK[:, ::2], x_MK.t(), x_MK[1:, 3:], x_MK[:1].expand(20, 64), x_MK.double())
    for x, fmt in itertools.product(views, (f.NVFP4, f.NVFP4_ROWWISE, f.NVFP4_4OVER6_16X16)):
        rows = x.shape[0] if fmt is f.NVFP4_ROWWISE else 1
        numbers = row_ids[: x.shape[0]]
        amax = torch.linspace(1, 9, rows)
        how = (Quantizer(fmt, noise_bits=8).text, STATE, 1, numbers, 16, amax)
        with backends.backend("reference"):
            expected = results(x, fmt, how)
        for name in (*SETS, "torch"):
            with backends.backend(name):
                assert all(map(same, expected, results(x, fmt, how))), (name, fmt.name)


def test_two_orientations_from_one_read_are_the_two_operands() -> None:
    for fmt, fmt_t, dtype, wide in (
        (f.NVFP4, f.NVFP4, torch.float32, torch.float32),
        (f.NVFP4, f.NVFP4, torch.bfloat16, torch.bfloat16),
        (f.MXFP4_32X32, f.NVFP4_ROWWISE, torch.bfloat16, torch.bfloat16),
        (f.FP8_128X128_E4M3, f.MXFP8_E4M3, torch.bfloat16, torch.float32),
        (f.FP8_ROW_E4M3, f.FP8_ROW_E4M3, torch.float32, torch.float32),
    ):
        x = torch.randn(160, 300).to(dtype)
        rows = Quantizer(fmt, noise_bits=8).text
        columns = Quantizer(fmt_t, True, f.Hadamard(16, f.NVFP4_SIGNS), 8).text
        both = ops.operand_pair(x, rows, columns, wide, True, STATE, 2, 3, None, 4)
        one = ops.operand(x, rows, wide, True, STATE, 2, None, 4)
        other = ops.operand(x, columns, wide, True, STATE, 3, None, 4)
        assert all(map(same, both, (*one, *other))), fmt.name


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32, 64, 256])
def test_every_hadamard_size(size: int) -> None:
    transform = f.Hadamard(size, signs=5).definition
    x = torch.randn(512, 37)
    # a NaN with a sign and a payload: results hold the one NaN of their dtype
    x.view(torch.int32)[3, 5] = -(1 << 22) + 1
    for dtype, dim in itertools.product(DTYPES, (0, 1)):
        part = x.to(dtype) if dim == 0 else x.t().to(dtype)
        with backends.backend("reference"):
            expected = ops.hadamard(part, transform, dim)
        for name in SETS:
            with backends.backend(name):
                assert same(ops.hadamard(part, transform, dim), expected), (name, dtype, dim)
    cube = torch.randn(3, 2 * size, 5)
    with backends.backend("reference"):
        expected = ops.hadamard(cube, transform, 1)
    assert same(ops.hadamard(cube, transform, 1), expected)


@pytest.mark.parametrize("element", [e for e in f.ELEMENTS.values() if e.signed and e.has_zero])
def test_casts_of_any_bits(element: f.ElementType) -> None:
    generator = torch.Generator().manual_seed(3)
    x = any_bits(generator, 100, 101)
    for dtype, ties, overflow in itertools.product(DTYPES, f.Ties, f.Overflow):
        part = x.to(dtype).t()
        with backends.backend("reference"):
            expected = ops.cast(part, element.definition, ties, overflow)
        for name in SETS:
            with backends.backend(name):
                assert same(ops.cast(part, element.definition, ties, overflow), expected)


def test_noise_is_that_of_the_reference() -> None:
    for rows, columns, offset, noise_bits in itertools.product(
        (1, 7, 65), (1, 15, 16, 33, 2100), (0, 3, 2**20 + 5), (8, 32)
    ):
        row_ids = torch.arange(rows) * 2**31 + 5
        for numbers in (None, row_ids):
            how = (STATE, rows, columns, 4, noise_bits, numbers, offset)
            with backends.backend("reference"):
                expected = ops.random_bits(*how)
            for name in SETS:
                with backends.backend(name):
                    assert torch.equal(ops.random_bits(*how), expected), (name, how[1:])


@pytest.mark.parametrize("length", [1, 11, 17, 31, 63, 127])
def test_two_codes_to_a_byte_in_blocks_of_odd_length(length: int) -> None:
    """Tiles begin with a whole byte, also where pairs of codes run along the matrix's rows."""
    fmt = f.MXFP4.replace(name="odd", block=(1, length))
    x = torch.randn(length * 9 + 1024, 300)
    for part, transposed in ((x, True), (x[:40].repeat(1, 9), False)):
        quantizer = Quantizer(fmt, transposed).text
        with backends.backend("reference"):
            expected = ops.quantize(part, quantizer)
        for name in SETS:
            with backends.backend(name):
                assert all(map(same, ops.quantize(part, quantizer), expected)), name


def test_threads_share_the_work_and_change_nothing() -> None:
    x = torch.randn(1024, 520)
    how = (Quantizer(f.NVFP4, True, f.Hadamard(8, (1,) * 8), 8).text, STATE, 1)
    one = results(x, f.NVFP4, how)
    torch.set_num_threads(3)
    try:
        three = results(x, f.NVFP4, how)
    finally:
        torch.set_num_threads(1)
    assert all(map(same, one, three))


def test_a_matrix_of_more_than_2_31_bytes_by_stride(tmp_path: Path) -> None:
    """Three rows that lie 2^31 bytes apart, in a file of holes."""
    stride, columns = 2**29 + 16, 48
    path = tmp_path / "holes"
    with path.open("wb") as file:
        file.truncate((2 * stride + columns) * 4)
    store = torch.from_file(str(path), shared=True, size=2 * stride + columns)
    x = store.as_strided((3, columns), (stride, 1))
    x.copy_(torch.randn(3, columns))
    assert stride * 4 > 2**31
    for fmt in (f.NVFP4, f.MXFP8_E4M3):
        how = (Quantizer(fmt, False, f.Hadamard(16), 8).text, STATE, 1)
        expected = results(x.contiguous(), fmt, how)
        found = results(x, fmt, how)
        assert all(map(same, expected, found))


def test_flushed_denormals_change_no_bits() -> None:
    x = torch.randn(64, 64) * 1e-38
    expected = {name: quantize(x, f.NVFP4) for name in ("native", "torch", "reference")}
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        for name, before in expected.items():
            with backends.backend(name):
                assert quantize(x, f.NVFP4).equal(before)
                assert torch.tensor(1e-40) * 1.0 == 0, "the caller's setting is left as it was"
    finally:
        torch.set_flush_denormal(False)


#: torch's worker threads begin while the caller flushes, and go on doing so when it no longer does
WORKERS = """
import torch
from fp4lab import backend, formats as f
from fp4lab.functional import cast, fake_quantize, quantize
torch.set_num_threads(1)
x = torch.randn(512, 512, generator=torch.Generator().manual_seed(0)) * 1e-38
xs = x, x.double()
def results():
    for name in ("native", "torch", "reference"):
        with backend(name):
            for y in xs:
                yield from (quantize(y, f.MXFP8_E4M3).scales, fake_quantize(y, f.NVFP4_ONE_LEVEL))
                yield from (fake_quantize(y, f.BF16), cast(y, f.BF16_ELEMENT))
expected = list(results())
torch.set_num_threads(2)
torch.set_flush_denormal(True)
torch.empty(1 << 20).fill_(1)
torch.set_flush_denormal(False)
assert (torch.full((1 << 20,), 2.0**-140) * 0.5 == 0).any(), "the workers flush"
assert all(map(torch.equal, expected, results()))
assert torch.get_num_threads() == 2
"""


def test_worker_threads_that_flush_denormals_compute_nothing() -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot flush denormals")
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", WORKERS], env=environment, check=True)


def test_blocks_that_share_no_tile_are_quantized_one_after_another() -> None:
    x = torch.randn(1024, 64, generator=torch.Generator().manual_seed(3))
    tall = f.NVFP4.replace(name="tall", block=(997, 16))
    wide = f.NVFP4.replace(name="wide", block=(1, 991))
    texts = Quantizer(tall).text, Quantizer(wide, True, f.Hadamard(1024)).text
    with backends.backend("reference"):
        expected = ops.operand_pair(x, *texts, torch.float32, True)
    assert all(map(same, ops.operand_pair(x, *texts, torch.float32, True), expected))


def test_calls_from_several_threads() -> None:
    x = torch.randn(600, 512)
    expected = fake_quantize(x, f.NVFP4)
    found: list[Tensor] = []
    threads = [
        threading.Thread(target=lambda: found.append(fake_quantize(x, f.NVFP4))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(expected, one) for one in found)


def test_choices_that_cannot_be_had_are_refused() -> None:
    with pytest.raises(InputError, match="backend='cuda' is not known"), backends.backend("cuda"):
        pass
    x = torch.randn(16, 16)
    if "v4" not in instruction_sets():
        with pytest.raises(InputError, match="native-v4"), backends.backend("native-v4"):
            quantize(x, f.NVFP4)
    with backends.backend("native"), pytest.raises(InputError, match="computes on CPUs"):
        backends.chosen(torch.device("cuda"))


def test_triton_is_refused_where_it_cannot_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is installed here and interprets, or not."""
    x = torch.randn(16, 16)
    expected = quantize(x, f.NVFP4)
    for installed, runs, reason in (
        (False, False, "triton is not installed; use 'reference'"),
        (True, False, "computes on GPUs, and the tensor is on cpu; use 'native'"),
    ):
        monkeypatch.setattr(backends, "has_triton", lambda answer=installed: answer)
        monkeypatch.setattr(backends, "_runs_triton", lambda _, answer=runs: answer)
        with backends.backend("triton"), pytest.raises(InputError, match=reason):
            quantize(x, f.NVFP4)
        assert backends.chosen(torch.device("cuda")) == ("triton" if installed else "reference")
    monkeypatch.undo()
    if not backends.has_triton() or not backends._runs_triton(x.device):
        return
    with backends.backend("triton"):
        assert quantize(x, f.NVFP4).equal(expected)


CHILD = """
import sys, torch
from fp4lab import InputError, formats, quantize
from fp4lab.kernels import backends

def codes():
    return int(quantize(torch.linspace(-3, 5, 1 << 18).view(512, 512), formats.NVFP4).codes.sum())

print(codes())
assert backends.forced() == "reference"
backends._ASKED = ""
try:
    codes()
except UserWarning as warning:
    print(warning)
print(codes())
for name in ("native", "native-v3"):
    try:
        with backends.backend(name):
            codes()
    except InputError as error:
        print(error)
"""


def test_without_a_compiler_one_warning_and_the_same_codes(tmp_path: Path) -> None:
    """Told once, also where warnings are errors; never where nobody asks for C."""
    lacking = {"CC": "/no/such/compiler", "FP4LAB_BACKEND": "reference"}
    child = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", CHILD],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), **lacking},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    by_reference, warning, by_torch, *refused = child.stdout.splitlines()
    expected = int(quantize(torch.linspace(-3, 5, 1 << 18).view(512, 512), f.NVFP4).codes.sum())
    assert (by_reference, by_torch) == (str(expected), str(expected))
    assert warning.startswith("fp4lab computes without its C operators")
    for name, message in zip(("native", "native-v3"), refused, strict=True):
        assert message.startswith(f"backend='{name}' cannot be had: the C compiler '/no/such")


def test_a_cache_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(taken))
    monkeypatch.setattr(library, "PACKAGED", tmp_path / "absent.so")
    found, reason = library._found.__wrapped__()
    assert found is None
    assert str(taken) in reason
    assert reason.endswith("set XDG_CACHE_HOME to a folder that can be written")


def test_a_compiler_that_cannot_be_named_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", 'gcc "')
    with pytest.raises(RuntimeError, match=r"CC='gcc \"' cannot be read: No closing quotation"):
        build.compiler()


def test_a_transform_of_size_1_without_signs_changes_nothing() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(ops.hadamard(x, "1", 1), x)
    cast = Quantizer(f.BF16, hadamard=f.Hadamard(1)).text
    for name in (*SETS, "torch", "reference"):
        with backends.backend(name):
            # also a zero keeps its sign
            assert ops.fake_quantize(torch.tensor([[-0.0]]), cast).signbit().all(), name


def test_an_amax_of_minus_zero_is_zero() -> None:
    x, minus = torch.randn(4, 16), torch.tensor([-0.0])
    for name in (*SETS, "torch", "reference"):
        with backends.backend(name):
            assert quantize(x, f.NVFP4, amax=minus).equal(quantize(x, f.NVFP4, amax=-minus)), name


def test_a_negative_amax_is_nan_where_nobody_looked() -> None:
    """A compiler, or a caller of the operators, does not stop to look at values."""
    x = torch.randn(4, 32)
    for name in (*SETS, "torch", "reference"):
        with backends.backend(name):
            y = ops.fake_quantize(x, Quantizer(f.NVFP4).text, amax=torch.tensor([-3.0]))
        assert y.isnan().all(), name


def test_a_power_of_two_for_elements_below_1() -> None:
    """amax / largest element exceeds float32, and the scale is the largest there is."""
    element = f.ElementType("q", 2, 1, 7)
    for rule in f.ScaleRule:
        fmt = BlockFormat(
            name="m",
            element=element,
            block=(1, 32),
            scale=f.E8M0,
            block_scale=f.BlockScale.POWER_OF_TWO,
            scale_rule=rule,
        )
        for name in (*SETS, "torch", "reference"):
            with backends.backend(name):
                q = quantize(torch.full((1, 32), 3e38), fmt)
            assert q.scales.tolist() == [[254]], (name, rule)
            assert q.dequantize()[0, 0] == 2.0**127 * element.max_value


def test_blocks_in_several_threads_end_in_any_order() -> None:
    before = backends.forced()
    with contextlib.ExitStack() as second:
        with contextlib.ExitStack() as first:
            first.enter_context(backends.backend("reference"))
            second.enter_context(backends.backend("torch"))
        assert backends.forced() == "torch"
    assert backends.forced() == before


def test_an_infinite_element_under_a_scale_of_zero_is_the_one_nan() -> None:
    how = {"block": (1, 16), "scale": f.E4M3, "overflow": f.Overflow.SPECIAL}
    fmt = BlockFormat(name="mine", element=f.BF16_ELEMENT, **how)  # type: ignore[arg-type]
    for name in (*SETS, "torch", "reference"):
        with backends.backend(name):
            found = fake_quantize(torch.full((1, 16), 5.0), fmt)
        assert (found.view(torch.int32) == 0x7FC00000).all(), name


def test_a_damaged_library_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = library._compiled().read_bytes()
    compiled: list[Path] = []

    def compile_library(target: Path) -> None:
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(whole)
        compiled.append(target)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "compile_library", compile_library)
    target = library._compiled()
    for count, part in enumerate((whole[:100_000], b"", b"no library"), start=1):
        assert library._compiled().read_bytes() == whole
        assert compiled == [target] * count
        target.write_bytes(part)
    assert library._compiled().read_bytes() == whole
    assert library._sources(ctypes.CDLL(str(target))) == build.source_hash()
