"""A fixed matrix to NVFP4, by every backend that is here, compared with recorded bytes.

The bytes were written down once; `tests/doctor/test_selftest.py` holds them against a restatement
of the format in numpy, which the recorded arrays of Transformer Engine hold in turn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp4lab import formats
from fp4lab.doctor.findings import Line, State
from fp4lab.formats import Rounding
from fp4lab.functional import noise_state, quantize
from fp4lab.kernels.backends import backend

SCALES, AMAX = "6e567e72", 15.5
#: codes to nearest, and by 8 random bits of `noise_state(1)`
CODES = {
    Rounding.NEAREST: "2f5e7cf8d3b6174e6d7ae2c5963f5e7bf0d4a6275e6df9e3c5074f6d7be1d5a6",
    Rounding.STOCHASTIC_8: "2f5e7ce8d4b5175e6c7ae2d5874f5e6bf0d5b6174e7df9e3c6074f6d7be1d5a7",
}
REINSTALL = "give fp4lab's `pip install` command again with --force-reinstall --no-deps"


def matrix() -> Tensor:
    """Float32 `[2, 32]`: four blocks of multiples of 1/64, of other sizes each."""
    values = (torch.arange(64) * 37 % 64 - 31).float() / 8
    return (values.view(4, 16) * torch.tensor([[1.0], [0.125], [4.0], [1.5]])).view(2, 32)


def differences(device: torch.device) -> list[str]:
    """What of the recorded bytes the backend in force does not give; empty where all is right."""
    found = []
    x_MK = matrix().to(device)
    noise = noise_state(1).to(device)
    for rounding, codes in CODES.items():
        q = quantize(x_MK, formats.NVFP4, rounding=rounding, noise=noise)
        parts = {"codes": (_hex(q.codes), codes), "scales": (_hex(q.scales), SCALES)}
        parts["amax"] = (str(q.amax.item()), str(AMAX))
        found += [
            f"{rounding.name.lower()}: {name} {ours}, recorded {recorded}"
            for name, (ours, recorded) in parts.items()
            if ours != recorded
        ]
    return found


def check(name: str, device: torch.device) -> Line:
    """The self-test of one backend."""
    try:
        with backend(name):
            wrong = differences(device)
    except Exception as error:
        # whatever a broken installation raises is what is to be told
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return Line("self-test", name, said, State.BROKEN, REINSTALL)
    if wrong:
        return Line("self-test", name, "; ".join(wrong), State.BROKEN, REINSTALL)
    return Line("self-test", name, "NVFP4 codes, scales and amax as recorded")


def _hex(part: Tensor) -> str:
    return part.cpu().numpy().tobytes().hex()
