"""The C operators under AddressSanitizer and UndefinedBehaviorSanitizer, on the parity cases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fp4lab.kernels.native import build

CHILD = """
import ctypes, sys
from fp4lab.kernels.native import library
sanitized = ctypes.CDLL(sys.argv[1])
library.load = lambda: (sanitized, "")
import torch
torch.set_num_threads(2)
from fp4lab.kernels.native import structures
structures.PARALLEL = 1 << 10
from tests.kernels import test_backends as backends, test_packed as packed
from tests.kernels.matrices import KINDS
checked = 0
sets = backends.SETS
for number, fmt in enumerate(backends.FORMATS):
    for other, kind in enumerate(KINDS[number % 6 :: 6]):
        cases = backends.CASES[(number + 7 * other) % 53 :: 53]
        with backends.backends.backend(sets[(number + other) % len(sets)]):
            for x_MK, how in backends.drawn(kind, fmt, cases):
                backends.results(x_MK, fmt, how)
                checked += 1
backends.SETS = sets[-1:]
for element in (backends.f.E4M3, backends.f.BF16_ELEMENT, backends.f.INT4):
    backends.test_casts_of_any_bits(element)
backends.test_two_orientations_from_one_read_are_the_two_operands()
backends.test_given_amax_row_ids_and_strides()
backends.test_every_hadamard_size(16)
backends.test_every_hadamard_size(64)
packed.NAMES = sets[-1:]
for fmt in packed.FORMATS:
    packed.test_a_few_rows_times_packed_weights(fmt)
assert checked > 500, checked
"""


def runtime(name: str) -> str:
    """Where the compiler keeps a sanitizer's library; empty without one."""
    try:
        asked = [*build.compiler(), f"-print-file-name={name}"]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (RuntimeError, OSError, subprocess.CalledProcessError):
        return ""
    return found if Path(found).is_absolute() else ""


@pytest.mark.slow
def test_no_read_or_write_outside_and_no_undefined_behaviour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the plainest and the widest instruction set: the sources know no others."""
    asan = runtime("libasan.so")
    if not asan:
        pytest.skip("the C compiler has no AddressSanitizer library (libasan.so)")
    library = tmp_path / "sanitized.so"
    widths = {name: flags for name, flags in build.X86.items() if name in ("v2", "v4")}
    monkeypatch.setattr(build, "X86", widths)
    build.compile_library(
        library,
        *("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
        "-fno-omit-frame-pointer",
    )
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(library)],
        env={
            **os.environ,
            "LD_PRELOAD": asan,
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
