"""Other packages, played by this one: what is measured, compared and told."""

from __future__ import annotations

import importlib.util
import logging
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fp4lab
from fp4lab import formats
from fp4lab.bench import peer_rows, peers, run
from fp4lab.bench.peers import FAKE, KINDS, LINEAR, MX_FAKE, QUANTIZE, Peer, Work
from fp4lab.bench.results import Line
from fp4lab.bench.rows import Setting

SMALL = Setting(size=128)
ROOT = Path(__file__).resolve().parents[2]


def nvfp4(x: Tensor) -> Tensor:
    return fp4lab.fake_quantize(x, formats.NVFP4)


def fail(*_: object) -> None:
    raise NotImplementedError("no kernel for CPU\nand more")


def same(run: Callable[..., Any]) -> Callable[..., Any]:
    """A compiler that changes nothing."""
    return run


def stopwatch(run: Callable[[], object], calls: int) -> float:
    run()
    return float(calls)


def lines(work: Work, compiled: peer_rows.Compile = same) -> list[Line]:
    """Those of one piece of work by a package named "it"."""
    row = peer_rows._row(work.kind, {"it": [work]})
    assert isinstance(row.job, peer_rows.PeerJob)
    job = peer_rows.PeerJob(work.kind, row.job.works, compiled)
    row = run.Row(group=row.group, name=row.name, job=job, target=row.target)
    return run.measure_row(row, SMALL, stopwatch=stopwatch)


def test_a_quantizer_is_compared_with_ours() -> None:
    mine, theirs = lines(
        Work(
            kind=QUANTIZE,
            run=lambda x: fp4lab.quantize(x, formats.NVFP4),
            values=lambda q: q.dequantize(),
        )
    )
    assert (mine.name, mine.against, mine.target) == ("quantize nvfp4: fp4lab", "copy", None)
    assert (theirs.name, theirs.against) == ("quantize nvfp4: it", "our time")
    assert str(theirs.target) == "at least 3"
    assert "same values" in theirs.note


def test_a_layer_is_held_against_its_own_matmul() -> None:
    mine, theirs = lines(Work(kind=LINEAR, run=lambda x, w: F.linear(nvfp4(x), nvfp4(w))))
    assert str(mine.target) == "at most 1.2"
    assert theirs.target is None
    assert mine.against == theirs.against == "its matmul"
    # what bfloat16 rounds
    share = float(theirs.note.split("product ")[1].split("%")[0])
    assert 0 <= share < 1


def test_other_values_are_told() -> None:
    one_step_off = lines(Work(kind=FAKE, run=lambda x: nvfp4(x) * 1.1, note="by 1.1"))[1]
    assert " of 16384 values differ; by 1.1" in one_step_off.note
    last_bit_off = lines(Work(kind=FAKE, run=lambda x: nvfp4(x) * (1 + 2.0**-22)))[1]
    assert "same values" in last_bit_off.note
    other_format = formats.MXFP4.replace(name="ties", ties=formats.Ties.ZERO)
    work = Work(kind=MX_FAKE, run=lambda x: fp4lab.fake_quantize(x, other_format), fmt=other_format)
    assert "same values" in lines(work)[1].note


def test_what_fails_is_a_line_and_the_others_go_on() -> None:
    broken, mine = lines(Work(kind=FAKE, run=fail))
    assert broken.left_out == "NotImplementedError: no kernel for CPU"
    assert mine.seconds is not None


def test_the_faster_of_eager_and_compiled_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (torch.ones(16, 16),)
    eager = Work(kind=FAKE, run=nvfp4)
    for times, words in (
        ((2.0, 1.0), "compiled (eager 2.0x)"),
        ((1.0, 3.0), "eager (compiled 3.0x)"),
    ):
        trials = iter(times)
        monkeypatch.setattr(peer_rows, "_trial", lambda run, given, t=trials: next(t))
        assert peer_rows.faster(eager, given, nvfp4(*given), compiled=same)[1] == words


def test_a_compiled_call_with_other_values_is_not_taken() -> None:
    given = (torch.ones(16, 16),)
    own = nvfp4(*given)
    double = lambda run: lambda x: 2 * run(x)  # noqa: E731
    chosen, how = peer_rows.faster(Work(kind=FAKE, run=nvfp4), given, own, compiled=double)
    assert how == "eager (compiled, its values are 100% off)"
    assert torch.equal(chosen(*given), own)
    # but it is where the eager values are as far from ours
    how = peer_rows.faster(Work(kind=FAKE, run=nvfp4), given, 2 * own, compiled=double)[1]
    assert "off" not in how


def test_what_does_not_compile_runs_as_it_is() -> None:
    given = (torch.ones(16, 16),)
    work, own = Work(kind=FAKE, run=nvfp4), nvfp4(*given)
    how = peer_rows.faster(work, given, own, compiled=lambda run: fail)[1]
    assert how == "eager, does not compile (NotImplementedError: no kernel for CPU)"


def test_no_gradient_is_recorded() -> None:
    given = (torch.ones(16, 16, requires_grad=True),)
    work, own = Work(kind=FAKE, run=nvfp4), nvfp4(*given)
    chosen, _ = peer_rows.faster(work, given, own.detach(), compiled=same)
    assert not chosen(*given).requires_grad


def broken_import() -> Sequence[Work]:
    raise ImportError("needs CUDA\nlibcuda.so")


def nameless_import() -> Sequence[Work]:
    raise ModuleNotFoundError("no part of it")


@pytest.mark.parametrize(
    ("module", "works", "reason"),
    [
        ("absent_package.part", list, "not installed; pip install it"),
        ("stand_in", broken_import, "ImportError: needs CUDA"),
        ("stand_in", nameless_import, "ModuleNotFoundError: no part of it"),
    ],
)
def test_why_a_package_is_not_measured(
    module: str,
    works: Callable[[], Sequence[Work]],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "stand_in", types.ModuleType("stand_in"))
    peer = Peer(name="it", module=module, install="pip install it", works=works)
    assert peer.load() == ((), reason)
    assert peer_rows.rows([peer]) == ([], {"it": reason})


def test_a_package_that_lacks_another_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lacking.py").write_text("import absent_helper\n")
    monkeypatch.syspath_prepend(tmp_path)
    peer = Peer(name="it", module="lacking", install="pip install it", works=list)
    assert peer.load()[1] == "its import needs absent_helper; pip install absent_helper"


def test_rows_are_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stand_in", types.ModuleType("stand_in"))
    work = Work(kind=FAKE, run=nvfp4)
    peer = Peer(name="it", module="stand_in", install="", works=lambda: [work])
    (row,), missing = peer_rows.rows([peer])
    assert (row.name, missing) == ("peers fake-quantize nvfp4", {})


def test_others_see_neither_this_checkout_nor_our_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(ROOT), *(path for path in sys.path if path != str(ROOT))]
    monkeypatch.setattr(sys, "path", list(paths))
    with peers.on_their_own():
        assert str(ROOT) not in sys.path
        warnings.warn("theirs", DeprecationWarning, stacklevel=1)
        assert not logging.getLogger("it").isEnabledFor(logging.CRITICAL)
    assert sys.path == paths
    assert logging.getLogger("it").isEnabledFor(logging.CRITICAL)


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
@pytest.mark.slow
def test_an_installed_package_does_the_work(peer: Peer) -> None:
    top = peer.module.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        pytest.skip(f"{peer.name} is not installed")
    works, reason = peer.load()
    assert reason == ""
    assert {work.kind for work in works} <= set(KINDS)
    for work in works:
        theirs = lines(work)[-1]
        assert theirs.left_out == ""
        assert "same values" in theirs.note or "product" in theirs.note
