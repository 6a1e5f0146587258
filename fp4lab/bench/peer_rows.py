"""The rows that hold other packages against this one.

All do the same work on the same tensors in the same run: eagerly or through `torch.compile`,
whichever is faster on a trial, and each call, ours too, has a new result. What the results stand
for is compared with ours, since a faster answer to another question is none. What fails is a line
with its reason, and ends nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

import fp4lab
from fp4lab import formats
from fp4lab.bench.measure import Run
from fp4lab.bench.operators import copying
from fp4lab.bench.peers import (
    FAKE,
    KINDS,
    LINEAR,
    MX_FAKE,
    MX_LINEAR,
    PEERS,
    QUANTIZE,
    Peer,
    Work,
    on_their_own,
)
from fp4lab.bench.results import Line, Target
from fp4lab.bench.rows import Claim, Job, Row, Setting, one_line
from fp4lab.formats import BlockFormat
from fp4lab.recipes import LinearRecipe

GROUP = "peers"
OURS = "fp4lab"
FASTER = Target(3.0, "at least")
OVER_MATMUL = Target(1.2)
TRIALS = 2
#: One step of E2M1 or E4M3 changes a value by 1/16 of it or more; another order of the same
#: float32 multiplications by 2^-20 at most.
SAME = 2.0**-10
#: how far from ours compiled values may be where eager ones are nearer; bfloat16 rounds by 2^-9
OFF = 2.0**-6
Compile: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def rows(peers: Sequence[Peer] = PEERS) -> tuple[list[Row], dict[str, str]]:
    """The rows of what can be imported, and why the others cannot."""
    found: dict[str, Sequence[Work]] = {}
    missing: dict[str, str] = {}
    for peer in peers:
        works, reason = peer.load()
        if reason:
            missing[peer.name] = reason
        else:
            found[peer.name] = works
    kinds = [
        kind for kind in KINDS if any(w.kind == kind for works in found.values() for w in works)
    ]
    return [_row(kind, found) for kind in kinds], missing


def _row(kind: str, found: Mapping[str, Sequence[Work]]) -> Row:
    works = {name: w for name, works in found.items() for w in works if w.kind == kind}
    target = OVER_MATMUL if kind in (LINEAR, MX_LINEAR) else FASTER
    return Row(group=GROUP, name=f"peers {kind}", job=PeerJob(kind, works), target=target)


@dataclass(frozen=True)
class PeerJob:
    """Sets a kind of work up for us and for everyone who does it."""

    kind: str
    works: Mapping[str, Work]
    compiled: Compile = field(default=torch.compile)

    def __call__(self, setting: Setting, row: Row) -> Job:
        """The runs and the claims; a package that fails is left out with its reason."""
        given = self._tensors(setting)
        plain = "matmul" if self.is_product else "copy"
        runs: dict[str, Run] = {
            plain: partial(F.linear, *given) if self.is_product else copying(given[0]),
            OURS: ours(self.kind, given),
        }
        against = "its matmul" if self.is_product else "copy"
        limit = row.target if self.is_product else None
        claims = [Claim(name=self._name(OURS), of=OURS, to=plain, against=against, target=limit)]
        lines = []
        for name, work in self.works.items():
            try:
                runs[name], note = self._set_up(work, given)
            except Exception as error:  # whatever another package raises must not end our run
                lines.append(Line(group=GROUP, name=self._name(name), left_out=one_line(error)))
                continue
            claim = replace(claims[0], name=self._name(name), of=name, target=None, note=note)
            if not self.is_product:
                claim = replace(claim, to=OURS, against="our time", target=row.target)
            claims.append(claim)
        return Job(runs=runs, claims=claims, lines=lines)

    @property
    def is_product(self) -> bool:
        """Whether it multiplies two matrices."""
        return self.kind in (LINEAR, MX_LINEAR)

    def _set_up(self, work: Work, given: tuple[Tensor, ...]) -> tuple[Run, str]:
        """A package's call, and what is to be known of it."""
        with on_their_own():
            own = _own_values(work, given)
            run, how = faster(work, given, own, compiled=self.compiled)
            same = agreement(work.values(run(*given)), own, is_product=self.is_product)
        return partial(run, *given), "; ".join(part for part in (how, same, work.note) if part)

    def _name(self, who: str) -> str:
        return f"{self.kind}: {who}"

    def _tensors(self, setting: Setting) -> tuple[Tensor, ...]:
        side = setting.size
        if not self.is_product:
            return (setting.matrix(side, side),)
        dtype = setting.matmul_dtype
        x_MK = setting.matrix(side // 8, side, dtype=dtype)
        return x_MK, setting.matrix(side, side, dtype=dtype, seed=1)


def ours(kind: str, given: tuple[Tensor, ...], fmt: BlockFormat | None = None) -> Run:
    """The same work by this package, in the kind's own format or in another."""
    fmt = fmt or (formats.MXFP4 if kind in (MX_FAKE, MX_LINEAR) else formats.NVFP4)
    if kind == QUANTIZE:
        return partial(fp4lab.quantize, given[0], fmt)
    if kind in (FAKE, MX_FAKE):
        return partial(fp4lab.fake_quantize, given[0], fmt)
    x_MK, w_NK = given
    layer = fp4lab.nn.Linear(
        *(w_NK.shape[1], w_NK.shape[0], False),
        recipe=LinearRecipe.uniform(fmt),
        device=w_NK.device,
        dtype=w_NK.dtype,
    )
    layer.weight.data = w_NK

    def forward() -> Tensor:
        with torch.no_grad():
            result: Tensor = layer(x_MK)
            return result

    return forward


def faster(
    work: Work, given: tuple[Tensor, ...], own: Tensor, *, compiled: Compile
) -> tuple[Callable[..., Any], str]:
    """The call as it is or compiled, whichever took less CPU time, and which that was.

    A compiled call whose values are further from ours than before is not taken: inductor keeps
    intermediate results in float32, and code that counts on their rounding to bfloat16 breaks.

    Raises:
        Exception: whatever the call itself raises; a failure of the compiler is told in the words.
    """
    eager = torch.no_grad()(work.run)
    eager_s = _trial(eager, given)
    try:
        fused = torch.no_grad()(compiled(work.run))
        fused_s = _trial(fused, given)
        off = distance(work.values(fused(*given)), own)
    except Exception as error:  # of the compiler, or of what it makes of another package
        return eager, f"eager, does not compile ({one_line(error)[:60]})"
    if off > max(distance(work.values(eager(*given)), own), OFF):
        return eager, f"eager (compiled, its values are {off:.0%} off)"
    if fused_s < eager_s:
        return fused, f"compiled (eager {eager_s / fused_s:.1f}x)"
    return eager, f"eager (compiled {fused_s / eager_s:.1f}x)"


def distance(values: Tensor, to: Tensor) -> float:
    """Norm of the difference over the norm."""
    return float((values.float() - to.float()).norm() / to.float().norm())


def _trial(run: Callable[..., Any], given: tuple[Tensor, ...]) -> float:
    """CPU seconds of the quickest of a few calls, after one that compiles and warms up."""
    run(*given)
    times = []
    for _ in range(TRIALS):
        before = time.process_time()
        run(*given)
        times.append(time.process_time() - before)
    return min(times)


def _own_values(work: Work, given: tuple[Tensor, ...]) -> Tensor:
    """What a result should stand for, by this package in the work's format."""
    if len(given) == 1:
        return fp4lab.fake_quantize(given[0], work.fmt)
    product = ours(work.kind, given, work.fmt)()
    assert isinstance(product, Tensor)
    return product


def agreement(theirs: Tensor, own: Tensor, *, is_product: bool) -> str:
    """How far values are from ours, in words."""
    if is_product:
        return f"product {distance(theirs, own):.1%} from ours"
    differs = (theirs - own).abs() > SAME * torch.maximum(theirs.abs(), own.abs())
    # a NaN on either side compares as equal to nothing
    count = int((differs | (theirs.isnan() != own.isnan())).sum())
    return f"{count} of {own.numel()} values differ" if count else "same values"
