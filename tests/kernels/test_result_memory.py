"""Results in the memory of earlier ones: the same bits, and only memory that nobody holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from fp4lab import formats as f
from fp4lab.functional import noise_state
from fp4lab.kernels import ops
from fp4lab.kernels.native import memory
from fp4lab.kernels.native.library import instruction_sets
from fp4lab.kernels.native.memory import new_result, results_reused
from fp4lab.kernels.schema import Quantizer

STATE = noise_state(1)
TRANSFORM = f.Hadamard(16, f.NVFP4_SIGNS)
NVFP4 = Quantizer(f.NVFP4).text
FP8 = Quantizer(f.FP8_ROW_E4M3).text
PAIR = (Quantizer(f.NVFP4, noise_bits=8).text, Quantizer(f.NVFP4, True, TRANSFORM, 8).text)
X = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
CODES = ops.quantize(X, NVFP4)
OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "quantize": lambda x: ops.quantize(x, NVFP4),
    "fake_quantize": lambda x: ops.fake_quantize(x, NVFP4),
    "operand": lambda x: ops.operand(x, FP8, torch.float32, False),
    "operand_pair": lambda x: ops.operand_pair(x, *PAIR, torch.float32, False, STATE, 1, 2),
    "amax": lambda x: ops.amax(x, Quantizer(f.NVFP4_ROWWISE).text),
    "dequantize": lambda x: ops.dequantize(*CODES, f.NVFP4.definition, 128, x.dtype),
    "cast": lambda x: ops.cast(x, f.E4M3.definition, 0, 0),
    "hadamard": lambda x: ops.hadamard(x, TRANSFORM.definition, 1),
    "random_bits": lambda x: ops.random_bits(STATE, *x.shape, 0, 8, None, 0),
}

pytestmark = pytest.mark.skipif(not instruction_sets(), reason="there is no C library here")


def tensors(result: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def copies(result: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [part.clone() for part in tensors(result)]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_the_same_in_the_memory_of_those_before(name: str, dtype: torch.dtype) -> None:
    operator, x = OPERATORS[name], X.to(dtype)
    expected = copies(operator(x))
    strides = [part.stride() for part in tensors(operator(x))]
    with results_reused() as pieces:
        first = operator(-2 * x)
        places = [part.data_ptr() for part in tensors(first)]
        del first
        again = operator(x)
        assert [part.stride() for part in tensors(again)] == strides
        assert all(map(torch.equal, expected, tensors(again)))
        # what is copied for an epilogue or made from a result is not the operator's own
        assert tensors(again)[0].data_ptr() == places[0]
    with results_reused(pieces):
        held = operator(x)
        assert places[0] not in [part.data_ptr() for part in tensors(held)]


def test_scales_and_amax_are_results_too() -> None:
    with results_reused():
        places = [part.data_ptr() for part in OPERATORS["quantize"](X)]
        assert [part.data_ptr() for part in OPERATORS["quantize"](X)] == places


def test_what_is_held_is_not_written_to() -> None:
    with results_reused():
        values = ops.fake_quantize(X, NVFP4)
        before, part = values.clone(), values.t()[3:]
        del values
        other = ops.fake_quantize(2 * X, NVFP4)
        assert torch.equal(part, before.t()[3:])
        assert torch.equal(other, 2 * before)


def test_outside_a_result_is_new() -> None:
    with results_reused() as pieces:
        place = new_result((128, 128), torch.float32).data_ptr()
    # the piece is still there, so new memory lies elsewhere
    assert sum(map(len, pieces.values())) == 1
    assert new_result((128, 128), torch.float32).data_ptr() != place
    with results_reused(), results_reused(pieces):
        assert new_result((64, 256), torch.float32).data_ptr() == place
        assert new_result((0, 256), torch.float32).shape == (0, 256)


@pytest.fixture
def small_operands(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Any]]:
    """Operands of any size have memory of earlier ones; gives what is kept."""
    kept: dict[int, list[Any]] = {}
    monkeypatch.setattr(memory, "LARGE", 1)
    monkeypatch.setattr(memory, "_kept", kept)
    return kept


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_operands_have_the_memory_of_earlier_ones(
    small_operands: dict[int, list[Any]], transposed: bool, turned: bool
) -> None:
    quantizer = Quantizer(f.NVFP4, transposed).text
    new = [ops.operand(x, quantizer, torch.float32, turned)[0] for x in (X, 2 * X.flip(0))]
    expected, strides = copies(new), [part.stride() for part in new]
    places = {part.data_ptr() for part in new}
    assert len(places) == 2
    held = new.pop()[:1].t()  # a view holds all of it
    del new
    (free,) = small_operands[X.numel() * 4]
    place = torch.from_numpy(free).data_ptr()
    assert place in places - {held.data_ptr()}
    first = ops.operand(X, quantizer, torch.float32, turned)[0]
    second = ops.operand(2 * X.flip(0), quantizer, torch.float32, turned)[0]
    assert first.data_ptr() == place
    assert second.data_ptr() not in places
    for found, right, stride in zip((first, second), expected, strides, strict=True):
        assert torch.equal(found, right)
        assert found.stride() == stride
    assert torch.equal(held, expected[1][:1].t())


def test_what_is_kept_for_operands_has_a_limit(
    small_operands: dict[int, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "KEPT", 1000)
    for count in (100, 100, 50, 251):
        memory.new_operand((count,), torch.float32)
    assert {size: len(free) for size, free in small_operands.items()} == {400: 1, 200: 1}
    both = [memory.new_operand((count,), torch.float32) for count in (100, 200)]
    both.clear()
    assert sum(size * len(free) for size, free in small_operands.items()) <= 1000


def test_threads_of_python_share_no_operand(small_operands: dict[int, list[Any]]) -> None:
    inputs = [X * (n + 1) for n in range(4)]
    expected = [ops.operand(x, NVFP4, torch.float32, False)[0].clone() for x in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            values = ops.operand(inputs[number], NVFP4, torch.float32, False)[0]
            if not torch.equal(values, expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    # each thread holds one while it makes the next
    assert len(small_operands[X.numel() * 4]) <= 2 * len(threads)
