"""What holds for every test: poisoned memory, fixed seeds, one thread, no state left behind.

Memory that torch hands out uninitialized is filled with NaN (floats) and with the largest value
(integers, so 0xFF for codes): a kernel that leaves an element unwritten fails instead of passing by
luck. torch does that itself in its deterministic mode, below Python, so `empty`, `empty_like`,
`new_empty`, `empty_strided`, `resize_` and torch's own use of them are all covered and nothing is
patched. Left out: code that inductor generates, and float4_e2m1fn_x2, which torch cannot fill (its
`empty` and `clone` raise here; view uint8 codes instead).
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import hypothesis
import numpy as np
import pytest
import torch

# torch's deterministic mode asks for this before the first CUDA matrix product.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
torch.set_num_threads(1)
# Triton's kernels are interpreted where no GPU can run them; Triton reads this when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

hypothesis.settings.register_profile("local", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in a random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("--shuffle")) is not None:
        random.Random(seed).shuffle(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch.cuda.is_available() is false")


def torch_state() -> dict[str, object]:
    """The settings of torch that a test could change for the tests that run after it."""
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "gradient mode": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "number of threads": torch.get_num_threads(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "process group": torch.distributed.is_available() and torch.distributed.is_initialized(),
    }


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Uninitialized memory is NaN or 0xFF during the test; see the head of this file."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.fixture(autouse=True)
def fixed_seed() -> int:
    """The seed that every test starts with, so that it draws the same whatever ran before it."""
    seed = 0
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return seed


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Gives a command that cannot be run: all that it prints is one line on standard error."""
    from fp4lab import cli

    def line(*words: str) -> str:
        assert cli.main(words) == 2
        out, err = capsys.readouterr()
        assert (out, err[:8], err.count("\n"), err[-1]) == ("", "fp4lab: ", 1, "\n")
        return err

    return line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A stream that says it is a terminal, of 120 columns."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


@pytest.fixture
def broken() -> Callable[[str], Iterator[str]]:
    """A JSON table that is cut, is something else, lacks a value or has a wrong one."""

    def damages(text: str) -> Iterator[str]:
        table = json.loads(text)
        yield from (text[: len(text) // 2], "", "[]", "null", "3", '{"a": 1}')
        yield json.dumps({**table, "a": 1})
        for key in table:
            yield json.dumps({name: value for name, value in table.items() if name != key})
            yield json.dumps({**table, key: [["x"]]})

    return damages


@pytest.fixture
def small_disk() -> Callable[[int], AbstractContextManager[None]]:
    """No file of this process may grow beyond so many bytes: a full disk, with another number."""

    @contextmanager
    def limit(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit


@pytest.fixture(autouse=True)
def no_state_left() -> Iterator[None]:
    """Fails a test that leaves torch's settings changed, and drops what it compiled.

    The second because torch.compile counts recompilations per function over the whole process, so
    that its limit would be reached by some orders of the tests and not by others.
    """
    before = torch_state()
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    assert torch_state() == before
