"""Where the tests of the Triton operators run: in Triton's interpreter, and on a GPU.

Which of both a process can do is decided when Triton is imported: see tests/conftest.py.
"""

from __future__ import annotations

import pytest


@pytest.fixture
def by_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels that take every case, also where those of test_columns.py would be chosen."""
    from tests.kernels.triton import operators

    monkeypatch.setattr(operators.triton_columns, "takes", lambda _: False)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """ "cpu" is the interpreter."""
    from tests.kernels.triton import operators

    if request.param == "cpu" and not operators.launch.INTERPRETED:
        pytest.skip("kernels are compiled here: Triton was imported without TRITON_INTERPRET=1")
    return str(request.param)
