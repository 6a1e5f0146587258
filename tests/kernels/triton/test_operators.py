"""The registered operators under Triton: the reference's bits and strides, by its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fp4lab import formats as f
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat
from fp4lab.kernels import backends, ops
from fp4lab.kernels.matmul import dispatch as matmul_dispatch
from fp4lab.kernels.schema import Quantizer
from tests.kernels.matrices import KINDS, any_bits, some_special
from tests.kernels.parity import DTYPES, FORMATS, STATE, same
from tests.kernels.triton.operators import generator, launch, on

#: what C and torch in groups take, and Triton does not
WIDE_BLOCK = f.NVFP4.replace(name="wide_block", block=(1, 24))
#: one scale of rows or of all, of types without a sign
WHOLE_ROWS = f.MXFP4.replace(name="e8m0_rows", block=(1, f.WHOLE))
WHOLE_TENSOR = f.NVFP4_ONE_LEVEL.replace(
    name="ue4m3_tensor", block=(f.WHOLE, f.WHOLE), scale=f.UE4M3
)
TRANSFORM = f.Hadamard(16, f.NVFP4_SIGNS)
Call = Callable[[str], Any]


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    with backends.backend("triton"):
        yield


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Where kernels ran."""
    seen: list[torch.device] = []
    before = launch.on_device

    def recorded(device: torch.device) -> Any:
        seen.append(device)
        return before(device)

    monkeypatch.setattr(launch, "on_device", recorded)
    return seen


def equal(device: str, call: Call) -> bool:
    """Whether a call gives the reference's bits and strides; the reference runs on the CPU."""
    found = call(device)
    with backends.backend("reference"):
        expected = call("cpu")
    pairs = list(zip(found, expected, strict=True))
    assert pairs
    strides = [1 in b.shape or a.stride() == b.stride() for a, b in pairs]
    return all(strides) and all(same(a.cpu(), b) for a, b in pairs)


def arguments(
    fmt: BlockFormat,
    device: str,
    transposed: bool = False,
    size: int = 1,
    bits: int = 0,
    row_ids: Tensor | None = None,
    amax: Tensor | None = None,
    offset: int = 0,
) -> tuple[Any, ...]:
    """What follows the matrix."""
    state, row_ids, amax = (
        None if t is None else t.to(device) for t in (STATE if bits else None, row_ids, amax)
    )
    transform = TRANSFORM if size == 16 else None
    quantizer = Quantizer(fmt, transposed, transform, bits).text
    return quantizer, state, 3, row_ids, offset, amax


def pair(
    x: Tensor, both: tuple[BlockFormat, BlockFormat], device: str, turned: bool, amax: Any = None
) -> Any:
    """Rows to nearest, columns transformed and stochastic, in bf16."""
    rows, columns = Quantizer(both[0]).text, Quantizer(both[1], True, TRANSFORM, 8).text
    given = None if amax is None else amax.to(device)
    noise = (STATE.to(device), 2, 3, None, 16, given)
    return ops.operand_pair(x, rows, columns, torch.bfloat16, turned, *noise)


def operand(
    x: Tensor, quantizer: str, *noise: Any, dtype: torch.dtype = torch.bfloat16, turned: bool = True
) -> Any:
    return ops.operand(x, quantizer, dtype, turned, *noise)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_quantizers_of_every_format(fmt: BlockFormat, device: str) -> None:
    """Other sides, transforms, noise and numbers for each format."""
    number = FORMATS.index(fmt)
    transposed, bits, size = bool(number % 2), (8, 0, 32)[number % 3], (1, 16)[number // 2 % 2]
    shape = [(32, 33), (32, 1), (16, 40)][number % 3]
    kind = KINDS[number % len(KINDS)]
    x_MK = kind(generator(number), *(shape if transposed else shape[::-1]))
    dtype = DTYPES[number % 2]

    def call(where: str) -> list[Tensor]:
        x, how = on(where, x_MK), arguments(fmt, where, transposed, size, bits, offset=5)
        values = ops.fake_quantize(x, *how)
        operands = operand(x, *how, dtype=dtype, turned=number % 4 == 0)
        return [*ops.quantize(x, *how), values, *operands]

    assert equal(device, call)


CALLS: dict[str, Callable[[Tensor, str], Any]] = {
    "quantize": lambda x, d: ops.quantize(x, *arguments(f.NVFP4, d, True, 16, 8)),
    "fake_quantize": lambda x, d: [ops.fake_quantize(x, *arguments(f.MXFP4, d))],
    "operand": lambda x, d: operand(x, *arguments(f.NVFP4, d, True)),
    "operand_pair": lambda x, d: pair(x, (f.NVFP4, f.NVFP4), d, True),
    "amax": lambda x, d: [ops.amax(x, arguments(f.NVFP4, d, True, 16)[0])],
    "cast": lambda x, d: [ops.cast(x, f.E4M3.definition, f.Ties.EVEN, f.Overflow.SPECIAL)],
    "hadamard": lambda x, d: [ops.hadamard(x, TRANSFORM.definition, 0)],
    "random_bits": lambda x, d: [ops.random_bits(STATE.to(d), 5, 33, 2, 8, None, 7)],
}


@pytest.mark.parametrize("name", CALLS)
def test_kernels_compute_what_they_take(
    name: str, device: str, launches: list[torch.device]
) -> None:
    x_MK = some_special(generator(1), 48, 64)
    assert equal(device, lambda where: CALLS[name](on(where, x_MK), where))
    assert {where.type for where in launches} == {device}


@pytest.mark.parametrize(
    "fmt",
    [f.NVFP4_ROWWISE, f.FP8_ROW_E4M3, f.BF16, WHOLE_ROWS, WHOLE_TENSOR],
    ids=lambda fmt: fmt.name,
)
def test_kernels_read_what_is_stored(
    fmt: BlockFormat, device: str, launches: list[torch.device]
) -> None:
    with backends.backend("reference"):
        parts = ops.quantize(some_special(generator(2), 48, 71), *arguments(fmt, "cpu"))

    def call(where: str) -> list[Tensor]:
        there = [part.to(where) for part in parts]
        values = ops.dequantize(*there, fmt.definition, 71, torch.float64).to(torch.float32)
        return [values, *ops.stored_operand(*there, fmt.definition, 71, torch.bfloat16)]

    assert equal(device, call)
    assert len(launches) >= 2


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "both",
    [(f.NVFP4, f.NVFP4), (f.MXFP4_32X32, f.NVFP4_ROWWISE), (WIDE_BLOCK, f.MXFP4)],
    ids=lambda both: both[0].name,
)
def test_both_operands_from_one_call(
    both: tuple[BlockFormat, BlockFormat], turned: bool, device: str
) -> None:
    x_MK = some_special(generator(3), 64, 80).to(torch.bfloat16)
    amax = torch.tensor([3.0]) if both[0] is f.NVFP4 and turned else None
    assert equal(device, lambda where: pair(on(where, x_MK), both, where, turned, amax))


def test_given_amax_row_ids_and_strides(device: str) -> None:
    x_MK = torch.randn(32, 64, generator=generator(4))
    row_ids = torch.randperm(64, generator=generator(5)) + 2**32 - 7
    for x in (x_MK[:, ::2], x_MK.t(), x_MK[1:, 3:], x_MK[:1].expand(20, 64)):
        amax, ids = torch.linspace(1, 9, x.shape[0]), row_ids[: x.shape[0]]

        def call(where: str, x: Tensor = x, amax: Tensor = amax, ids: Tensor = ids) -> Any:
            how = arguments(f.NVFP4_ROWWISE, where, False, 1, 8, ids, amax, 16)
            return [*ops.quantize(on(where, x), *how), ops.fake_quantize(on(where, x), *how)]

        assert equal(device, call)


def test_what_kernels_leave_the_reference_computes(
    device: str, launches: list[torch.device]
) -> None:
    x_MK = some_special(generator(6), 40, 48)
    for x, fmt in ((x_MK.double(), f.NVFP4), (x_MK, WIDE_BLOCK), (x_MK[:0], f.NVFP4)):

        def call(where: str, x: Tensor = x, fmt: BlockFormat = fmt) -> Any:
            how = arguments(fmt, where, False, 1, 8)
            values = ops.fake_quantize(x.to(where), *how)
            return [*ops.quantize(x.to(where), *how), values.to(torch.float32)]

        assert equal(device, call)
    assert not launches
    with pytest.raises(InputError, match="Hadamard size 16"):
        ops.quantize(x_MK.to(device), *arguments(f.NVFP4, device, True, 16))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
def test_casts_and_transforms_of_any_bits(dtype: torch.dtype, device: str) -> None:
    x = any_bits(generator(7), 48, 33).to(dtype).t()

    def call(where: str) -> list[Tensor]:
        there = on(where, x)
        casts = [
            ops.cast(there, element.definition, ties, f.Overflow.SPECIAL)
            for element, ties in ((f.E2M1, f.Ties.EVEN), (f.BF16_ELEMENT, f.Ties.AWAY))
        ]
        cube = there.unflatten(1, (2, 24))
        transforms = ops.hadamard(there, TRANSFORM.definition, 1), ops.hadamard(cube, "8", 2)
        return [*casts, *(y.to(DTYPES[0]) if dtype == torch.float64 else y for y in transforms)]

    assert equal(device, call)


def test_noise_needs_a_number_for_each_row(device: str) -> None:
    ids = torch.arange(4, device=device)
    with pytest.raises(InputError, match="row_ids of shape"):
        ops.random_bits(STATE.to(device), 5, 33, 2, 8, ids, 7)


def stored_sides(device: str, *formats: BlockFormat) -> list[Any]:
    """Codes of two matrices with few bits, whose products have exact sums in any order."""
    arguments_of = []
    for seed, fmt in enumerate(formats):
        x = torch.randint(-6, 7, (24 + 16 * seed, 96), generator=generator(seed)) / 2
        x[:, ::16] = 6.0
        with backends.backend("reference"):
            stored = ops.quantize(x, *arguments(fmt, "cpu"))
        arguments_of += [*(part.to(device) for part in stored), fmt.definition]
    return arguments_of


@pytest.mark.parametrize(
    "formats",
    [
        (f.NVFP4, f.NVFP4_16X16),
        (f.MXFP4, f.MXFP8_E4M3),
        (f.FP8_ROW_E4M3, f.NVFP4_ROWWISE),
        (WHOLE_ROWS, WHOLE_TENSOR),
        (f.MXFP4, WHOLE_ROWS),
    ],
    ids=lambda both: f"{both[0].name}-{both[1].name}",
)
def test_products_of_stored_codes(
    formats: tuple[BlockFormat, BlockFormat],
    device: str,
    launches: list[torch.device],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if device == "cpu":
        from tests.kernels.triton.repair import repair

        repair(monkeypatch)
        here = backends.chosen
        monkeypatch.setattr(
            matmul_dispatch, "multiplies_by_triton", lambda device: here(device) == "triton"
        )

    def call(where: str) -> list[Tensor]:
        both = stored_sides(where, *formats)
        launches.clear()
        products = [ops.stored_matmul(*both, 96, dtype) for dtype in DTYPES[:2]]
        assert bool(launches) == (backends.forced() == "triton")
        assert products[0].any()
        return products

    assert equal(device, call)


def test_the_interpreter_does_not_multiply(device: str) -> None:
    """It would multiply the bits of bf16 as integers."""
    if device != "cpu":
        pytest.skip("compiled kernels multiply")

    def call(where: str) -> list[Tensor]:
        return [ops.stored_matmul(*stored_sides(where, f.NVFP4, f.NVFP4), 96, torch.bfloat16)]

    assert equal(device, call)


@pytest.mark.slow
def test_operators_pass_opcheck_under_triton(device: str) -> None:
    x = torch.randn(32, 64, device=device).bfloat16()
    how = arguments(f.NVFP4, device, True, 16, 8)
    torch.library.opcheck(ops.quantize, (x, *how))
    torch.library.opcheck(ops.fake_quantize, (x, *how))
    torch.library.opcheck(ops.operand, (x, how[0], torch.bfloat16, True, *how[1:]))
    stored = ops.quantize(x, *arguments(f.NVFP4, device))
    torch.library.opcheck(ops.stored_operand, (*stored, f.NVFP4.definition, 64, torch.bfloat16))
    both = stored_sides(device, f.NVFP4, f.MXFP4)
    torch.library.opcheck(ops.stored_matmul, (*both, 96, torch.bfloat16))
