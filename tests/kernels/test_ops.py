"""The registered operators: opcheck, results on the meta device, no device-dependent division."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fp4lab import formats as f
from fp4lab.errors import InputError
from fp4lab.formats import BlockFormat
from fp4lab.functional import noise_state
from fp4lab.kernels import backends, ops
from fp4lab.kernels.matmul.reference import epilogue_alpha
from fp4lab.kernels.quantize import reference
from fp4lab.kernels.schema import Quantizer

TWO_LEVEL_ROWS = f.NVFP4.replace(name="two_level_rows", block=(1, f.WHOLE))
WIDE_SCALE = f.NVFP4.replace(name="bf16_scale", scale=f.BF16_ELEMENT, level=f.Level.NONE)
FORMATS = [f.get(name) for name in f.names()] + [TWO_LEVEL_ROWS, WIDE_SCALE]
CHECKED = [
    f.NVFP4,
    f.NVFP4_16X16,
    f.NVFP4_ROWWISE,
    f.NVFP4_4OVER6,
    f.MXFP8_E4M3,
    f.FP8_TENSOR_E4M3,
    f.FP8_ROW_E5M2,
    f.BF16,
    TWO_LEVEL_ROWS,
]
#: sides, and bits of noise
SHAPES = [((5, 37), 8), ((0, 64), 32), ((32, 0), 0)]


def arguments(
    x: Tensor, fmt: BlockFormat, transposed: bool = False, bits: int = 0, size: int = 1
) -> tuple[Any, ...]:
    state = noise_state(0, "layer") if bits else None
    transform = f.Hadamard(size, 0) if size > 1 else None
    return x, Quantizer(fmt, transposed, transform, bits).text, state, 1


def name(fmt: BlockFormat) -> str:
    return fmt.name


def operand(x: Tensor, quantizer: str, *noise: Any, dtype: torch.dtype = torch.float32) -> Any:
    return ops.operand(x, quantizer, dtype, dtype == torch.bfloat16, *noise)


def pair(x: Tensor, fmt: BlockFormat, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """The arguments of both orientations: rows to nearest, columns transformed and stochastic."""
    rows, columns = Quantizer(fmt).text, Quantizer(fmt, True, f.Hadamard(16, 0), 8).text
    return x, rows, columns, dtype, True, noise_state(0, "layer"), 2, 3


def stored_arguments(
    stored: tuple[Tensor, ...], fmt: BlockFormat, columns: int, dtype: torch.dtype = torch.float32
) -> tuple[Any, ...]:
    return *stored, fmt.definition, columns, dtype


QUANTIZERS = [ops.quantize, ops.fake_quantize]


@pytest.mark.slow
@pytest.mark.parametrize("fmt", CHECKED, ids=name)
@pytest.mark.parametrize("op", QUANTIZERS, ids=str)
def test_quantizers_pass_opcheck(op: Any, fmt: BlockFormat) -> None:
    torch.library.opcheck(op, arguments(torch.randn(32, 64), fmt))
    torch.library.opcheck(op, arguments(torch.randn(32, 64).bfloat16(), fmt, True, 8, 16))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", CHECKED, ids=name)
def test_operands_pass_opcheck(fmt: BlockFormat) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, quantizer, *noise = arguments(torch.randn(32, 64), fmt)
        torch.library.opcheck(ops.operand, (x, quantizer, dtype, False, *noise))
        x, quantizer, *noise = arguments(torch.randn(32, 64).bfloat16(), fmt, True, 8, 16)
        torch.library.opcheck(ops.operand, (x, quantizer, dtype, True, *noise))
        torch.library.opcheck(ops.operand_pair, pair(x, fmt, dtype))
    torch.library.opcheck(ops.amax, arguments(torch.randn(32, 64), fmt, True, 0, 16)[:2])


@pytest.mark.slow
def test_the_other_operators_pass_opcheck() -> None:
    for fmt in (f.NVFP4, f.FP8_ROW_E4M3, f.MXFP4):
        stored = ops.quantize(*arguments(torch.randn(32, 64), fmt))
        for op in (ops.dequantize, ops.stored_operand):
            torch.library.opcheck(op, stored_arguments(stored, fmt, 64))
            torch.library.opcheck(op, stored_arguments(stored, fmt, 64, torch.bfloat16))
    torch.library.opcheck(ops.hadamard, (torch.randn(5, 32).bfloat16(), "16", 1))
    signed = f.Hadamard(16, f.NVFP4_SIGNS).definition
    torch.library.opcheck(ops.hadamard, (torch.randn(32, 5).t(), signed, -1))
    a, b = torch.randn(4, 8), torch.randn(6, 8)
    for alpha in (None, torch.randn(1), torch.randn(4, 1)):
        torch.library.opcheck(ops.matmul, (a, b, alpha, torch.float32))
        torch.library.opcheck(ops.matmul, (a.bfloat16(), b.bfloat16(), alpha, torch.bfloat16))
    stored = ops.quantize(*arguments(torch.randn(32, 64), f.NVFP4))
    both = (*stored, f.NVFP4.definition) * 2
    torch.library.opcheck(ops.stored_matmul, (*both, 64, torch.bfloat16))
    torch.library.opcheck(ops.cast, (torch.randn(3, 5, 2).transpose(0, 1), f.E4M3.definition, 0, 0))
    counts = torch.tensor([0, 3, 1])
    experts = torch.randn(3, 6, 8)
    for alpha in (None, torch.randn(3, 1)):
        torch.library.opcheck(ops.grouped_matmul, (a, experts, alpha, counts, torch.float32))
    stored = ops.quantize(*arguments(torch.randn(5, 32), f.NVFP4))
    for int8 in (False, True):
        torch.library.opcheck(
            ops.packed_matmul, (torch.randn(2, 32).bfloat16(), *stored, f.NVFP4.definition, int8)
        )
    for bits in (8, 32):
        torch.library.opcheck(ops.random_bits, (noise_state(3), 5, 33, 1, bits, None, 7))


def described(tensors: Any) -> list[tuple[torch.Size, torch.dtype, bool, bool]]:
    tensors = tensors if isinstance(tensors, (tuple, list)) else (tensors,)
    return [
        (t.shape, t.dtype, t.is_contiguous(), (t.t() if t.dim() == 2 else t).is_contiguous())
        for t in tensors
    ]


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_results_on_the_meta_device_are_described_as_the_real_ones(fmt: BlockFormat) -> None:
    for (shape, bits), transposed in itertools.product(SHAPES, (False, True)):
        x = torch.randn(shape)
        narrow = partial(operand, dtype=torch.bfloat16)
        for op in (ops.quantize, ops.fake_quantize, operand, narrow):
            real = op(*arguments(x, fmt, transposed, bits))
            meta = op(*arguments(x.to("meta"), fmt, transposed, bits))
            assert described(real) == described(meta), (op, shape, transposed, bits)
        amax = [ops.amax(*arguments(y, fmt, transposed)[:2]) for y in (x, x.to("meta"))]
        assert described(amax[0]) == described(amax[1])
        stored = ops.quantize(*arguments(x, fmt))
        for op, dtype in itertools.product(
            (ops.dequantize, ops.stored_operand), (torch.float32, torch.bfloat16)
        ):
            real = op(*stored_arguments(stored, fmt, shape[1], dtype))
            on_meta = tuple(t.to("meta") for t in stored)
            meta = op(*stored_arguments(on_meta, fmt, shape[1], dtype))
            assert described(real) == described(meta), (op, shape, dtype)


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_the_three_ways_to_an_operand_agree(fmt: BlockFormat) -> None:
    """Quantize and store, quantize and multiply, quantize and dequantize: the same numbers."""
    for transposed, bits, size in ((False, 0, 1), (True, 0, 16), (False, 8, 16), (True, 8, 1)):
        x = torch.randn(48, 80) * 3
        how = arguments(x, fmt, transposed, bits, size)
        stored = ops.quantize(*how)
        columns = x.shape[0] if transposed else x.shape[1]
        for direct, again in zip(
            operand(*how), ops.stored_operand(*stored_arguments(stored, fmt, columns)), strict=True
        ):
            assert torch.equal(direct, again)
        again = ops.dequantize(*stored_arguments(stored, fmt, columns))
        assert torch.equal(ops.fake_quantize(*how), again)


class Divisors(TorchDispatchMode):
    """Records what tensors are divided by."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket in (torch.ops.aten.div, torch.ops.aten.div_):
            self.seen.append(args[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_nothing_is_divided_by_a_number(fmt: BlockFormat) -> None:
    """CUDA multiplies by the rounded reciprocal of a number, and would differ in the last bit."""
    x = torch.randn(32, 64)
    with Divisors() as divisors:
        encoded = reference.quantize_blocks(x, fmt)
        reference.dequantized(encoded, fmt, (32, 64))
        _, epilogue = reference.operand(encoded, fmt, (32, 64))
        epilogue_alpha(epilogue, epilogue, fmt, fmt)
        _ = torch.ones(1) / 3.0
    assert [d for d in divisors.seen if not isinstance(d, Tensor)] == [3.0]
    assert len(divisors.seen) > 1 or fmt.level == f.Level.NONE


def test_a_transform_that_does_not_fit_is_refused_before_any_memory_is_read() -> None:
    for x, transposed in ((torch.randn(4, 24), False), (torch.randn(24, 4), True)):
        with pytest.raises(InputError, match="Hadamard size 16"):
            ops.quantize(*arguments(x, f.MXFP4, transposed, 0, 16))


@pytest.mark.parametrize("amax", [(1,), (), (0,), (5,)], ids=str)
def test_an_amax_of_another_shape_is_refused(amax: tuple[int, ...]) -> None:
    x, how = torch.randn(33, 48), Quantizer(f.NVFP4_ROWWISE).text
    with pytest.raises(InputError, match=r"amax of shape .* needs \(33,\)"):
        ops.fake_quantize(x, how, None, 0, None, 0, torch.ones(amax))


def test_noise_of_no_place_is_refused() -> None:
    x, how = torch.randn(5, 33), Quantizer(f.NVFP4, noise_bits=8).text
    for row_ids, offset in ((None, -16), (None, 2**34 - 32), (torch.arange(4), 0)):
        with pytest.raises(InputError, match=r"column_offset=|row_ids of shape \(4,\)"):
            ops.fake_quantize(x, how, noise_state(0), 0, row_ids, offset)
        with pytest.raises(InputError, match=r"column_offset=|row_ids of shape \(4,\)"):
            ops.random_bits(noise_state(0), 5, 33, 1, 8, row_ids, offset)


def test_stored_parts_that_do_not_belong_together_are_refused() -> None:
    codes, scales, amax = ops.quantize(torch.randn(16, 32), Quantizer(f.NVFP4).text)
    x = torch.randn(1, 32)
    for name, parts, columns in (
        ("codes", (codes, scales, amax), 1 << 24),
        ("codes", (codes[:, :8], scales, amax), 32),
        ("scales", (codes, scales[:1, :1], amax), 32),
        ("amax", (codes, scales, amax[:0]), 32),
    ):
        for op in (ops.dequantize, ops.stored_operand):
            with pytest.raises(InputError, match=f"{name} of shape"):
                op(*stored_arguments(parts, f.NVFP4, columns))
        if columns == 32:
            with pytest.raises(InputError, match=f"{name} of shape"):
                ops.packed_matmul(x, *parts, f.NVFP4.definition, False)


def test_formats_survive_the_flat_schema() -> None:
    for fmt in FORMATS:
        back = BlockFormat.from_definition(fmt.definition)
        assert back.definition == fmt.definition
        assert (back.element.max_value, back.cap) == (fmt.element.max_value, fmt.cap)


@pytest.mark.parametrize("name", ["bf16", "fp16", "nvfp4", "fp8_tensor_e4m3"])
def test_every_result_holds_one_nan(name: str) -> None:
    x = torch.randn(32, 32)
    x.view(torch.int32)[3, 5] = -(1 << 22)
    fmt = f.get(name)
    for backend in ("native", "torch", "reference"):
        with backends.backend(backend):
            how = arguments(x, fmt)
            for result in (operand(*how)[0], ops.fake_quantize(*how)):
                nan = result.view(torch.int32)[result.isnan()]
                assert len(nan) > 0
                assert (nan == 0x7FC00000).all()
            row = x[3:4].to(torch.bfloat16)
            short = ops.fake_quantize(*arguments(row, fmt, True))
            assert (short.view(torch.int16)[short.isnan()] == 0x7FC0).all()
