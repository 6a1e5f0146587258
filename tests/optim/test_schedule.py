from __future__ import annotations

import doctest
import math

import pytest

from fp4lab.errors import InputError
from fp4lab.optim import Schedule, schedule


def test_docstring_example() -> None:
    assert doctest.testmod(schedule).failed == 0


def test_warmup_is_linear_and_never_zero() -> None:
    rates = [
        Schedule("constant", peak=2.0, steps=9, warmup_steps=4).learning_rate(s) for s in range(9)
    ]
    assert rates == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]


def test_wsd_holds_the_peak_until_decay_starts_and_ends_at_the_floor() -> None:
    wsd = Schedule("wsd", peak=1.0, steps=100, warmup_steps=10, decay_steps=20, final_fraction=0.1)
    assert wsd.decay_start == 80
    assert {wsd.learning_rate(s) for s in range(10, 81)} == {1.0}
    assert wsd.learning_rate(90) == pytest.approx(0.55, rel=1e-15)
    assert wsd.learning_rate(100) == pytest.approx(0.1, rel=1e-15)
    assert wsd.learning_rate(1000) == wsd.learning_rate(100)
    falling = [wsd.learning_rate(s) for s in range(80, 101)]
    assert falling == sorted(falling, reverse=True)
    assert len(set(falling)) == len(falling)


def test_cosine_decays_from_the_end_of_warmup() -> None:
    cosine = Schedule("cosine", peak=3.0, steps=50, warmup_steps=10)
    assert cosine.decay_start == 10
    assert cosine.learning_rate(10) == 3.0
    assert cosine.learning_rate(30) == pytest.approx(1.5, rel=1e-15)
    assert cosine.learning_rate(20) == pytest.approx(1.5 * (1 + math.cos(math.pi / 4)), rel=1e-15)
    assert 0.0 < cosine.learning_rate(49) < cosine.learning_rate(48)


def test_constant_never_decays() -> None:
    assert Schedule("constant", peak=1.0, steps=5).decay_start is None


def test_no_stable_steps_left_is_allowed() -> None:
    wsd = Schedule("wsd", peak=1.0, steps=4, warmup_steps=2, decay_steps=2)
    assert [wsd.learning_rate(s) for s in range(4)] == [0.5, 1.0, 1.0, 0.5]


@pytest.mark.parametrize(("warmup", "decay"), [(6, 5), (-1, 2), (2, -1), (11, 0)])
def test_phases_that_do_not_fit_are_refused(warmup: int, decay: int) -> None:
    with pytest.raises(InputError, match=r"warmup_steps=.* do not fit in steps=10"):
        Schedule("wsd", peak=1.0, steps=10, warmup_steps=warmup, decay_steps=decay)


def test_unknown_shape_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'cosine'"):
        Schedule("cosin", peak=1.0, steps=10)  # type: ignore[arg-type]
