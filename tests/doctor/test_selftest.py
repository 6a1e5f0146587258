from __future__ import annotations

import numpy as np
import pytest
import torch

import fp4lab
from fp4lab import formats
from fp4lab.doctor import selftest
from fp4lab.doctor.findings import State
from fp4lab.formats import Rounding
from fp4lab.kernels.layout.reference import unpack_nibbles
from fp4lab.kernels.minifloat.reference import decode
from fp4lab.kernels.native.library import instruction_sets
from fp4lab.kernels.philox.reference import random_bits
from tests.kernels import block_oracle

CPU = torch.device("cpu")


@pytest.mark.parametrize("rounding", list(selftest.CODES))
def test_the_recorded_bytes_are_those_of_the_format(rounding: Rounding) -> None:
    """Against the restatement in numpy, with the noise of the reference."""
    x = selftest.matrix()
    noise = None
    if rounding.noise_bits:
        drawn = random_bits(2, 32, fp4lab.noise_state(1), stream=0, bits=rounding.noise_bits)
        noise = drawn.numpy().astype(np.int64)
    expected = block_oracle.quantize(x.numpy(), formats.NVFP4, noise, rounding.noise_bits)
    codes = torch.frombuffer(bytearray.fromhex(selftest.CODES[rounding]), dtype=torch.uint8)
    values = decode(unpack_nibbles(codes.view(2, 16), 32), formats.E2M1)
    assert np.array_equal(values.numpy(), expected.values)
    scales = torch.frombuffer(bytearray.fromhex(selftest.SCALES), dtype=torch.uint8)
    assert np.array_equal(decode(scales.view(2, 2), formats.E4M3).numpy(), expected.scales)
    assert expected.tensor_scale.tolist() == [selftest.AMAX]


def test_the_matrix_needs_several_scales_and_the_noise_moves_codes() -> None:
    assert len(set(bytes.fromhex(selftest.SCALES))) == 4
    nearest, stochastic = (bytes.fromhex(codes) for codes in selftest.CODES.values())
    assert sum(a != b for a, b in zip(nearest, stochastic, strict=True)) > 8
    assert set(nearest.hex()) == set("0123456789abcdef")


@pytest.mark.parametrize(
    "name", ["reference", "torch", *(f"native-{name}" for name in instruction_sets())]
)
def test_every_backend_passes(name: str) -> None:
    line = selftest.check(name, CPU)
    assert (line.state, line.cure) == (State.OK, ""), line


@pytest.mark.gpu
def test_triton_passes_on_a_gpu() -> None:
    pytest.importorskip("triton", reason="needs triton")
    assert selftest.check("triton", torch.device("cuda")).state == State.OK


def test_a_difference_is_told_with_both_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = selftest.CODES[Rounding.NEAREST]
    monkeypatch.setitem(selftest.CODES, Rounding.NEAREST, "3" + codes[1:])
    line = selftest.check("reference", CPU)
    assert line.state == State.BROKEN
    assert line.value == f"nearest: codes {codes}, recorded 3{codes[1:]}"
    assert "pip install" in line.cure


def test_a_backend_that_raises_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("cannot be\nloaded")

    monkeypatch.setattr(selftest, "quantize", fail)
    line = selftest.check("reference", CPU)
    assert (line.state, line.value) == (State.BROKEN, "OSError: cannot be loaded")
    assert selftest.check("unknown", CPU).value.startswith("InputError: backend='unknown'")
