"""Dataclasses to plain data and back: exact, short and strict."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Literal

import pytest

from fp4lab.errors import InputError
from fp4lab.specs.plain import from_plain, to_plain


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 0
    LARGE = 1


@dataclass(frozen=True)
class Leaf:
    width: float
    colour: Colour = Colour.RED
    size: Size = Size.SMALL


@dataclass(frozen=True)
class Tree:
    leaf: Leaf | None = field(default_factory=lambda: Leaf(1.0))
    leaves: tuple[Leaf, ...] = ()
    at: int | Literal["decay"] = 0
    signs: tuple[int, ...] | int | None = 7
    name: str = ""
    flag: bool = False
    span: tuple[int, float] | None = None
    counts: dict[str, int] = field(default_factory=dict)
    anything: Any = None


@pytest.mark.parametrize(
    ("tree", "plain"),
    [
        (Tree(), {}),
        (Tree(leaf=None), {"leaf": "none"}),
        (Tree(signs=None), {"signs": "none"}),
        (Tree(signs=(1, -1)), {"signs": [1, -1]}),
        (Tree(signs=0), {"signs": 0}),
        (Tree(at="decay"), {"at": "decay"}),
        (Tree(flag=True, name="none"), {"flag": True, "name": "none"}),
        (Tree(span=(1, 2.0), counts={"a b": 3}), {"span": [1, 2.0], "counts": {"a b": 3}}),
        (Tree(anything={"a": [None, 1.5]}), {"anything": {"a": [None, 1.5]}}),
        (Tree(leaf=Leaf(2.5, Colour.BLUE)), {"leaf": {"width": 2.5, "colour": "blue"}}),
        (
            Tree(leaves=(Leaf(0.1), Leaf(1e-300, size=Size.LARGE))),
            {"leaves": [{"width": 0.1}, {"width": 1e-300, "size": "large"}]},
        ),
    ],
)
def test_round_trip(tree, plain):
    assert to_plain(tree) == plain
    assert from_plain(Tree, plain, path="tree") == tree


def test_an_integer_will_do_for_a_float():
    assert from_plain(Leaf, {"width": 2}, path="leaf") == Leaf(2.0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"leef": {}}, r"field of tree='leef' is not known; did you mean 'leaf'"),
        ({"leaf": {}}, r"tree\.leaf\.width is missing"),
        ({"leaf": {"width": "2"}}, r"tree\.leaf\.width='2' should be float, not str"),
        ({"leaf": {"width": 1.0, "colour": "rad"}}, r"tree\.leaf\.colour='rad' .* blue, red"),
        ({"leaf": "oak"}, r"tree\.leaf='oak' should be a table"),
        ({"leaves": [{"width": 1.0}, {"width": True}]}, r"tree\.leaves\[1\]\.width=True"),
        ({"leaves": 3}, r"tree\.leaves=3 should be a list"),
        ({"flag": 1}, r"tree\.flag=1 should be true or false"),
        ({"at": "decoy"}, r"tree\.at='decoy' should be an integer.* did you mean 'decay'"),
        ({"at": True}, r"tree\.at=True"),
        ({"span": [1]}, r"tree\.span=\[1\] should be a list of 2, not 1"),
        ({"span": [1, "2"]}, r"tree\.span\[1\]='2' should be float"),
        ({"counts": [1]}, r"tree\.counts=\[1\] should be a table"),
        ({"counts": {"a": "1"}}, r"tree\.counts\.a='1' should be an integer"),
        ([], r"tree=\[\] should be a table"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(data, message):
    with pytest.raises(InputError, match=message):
        from_plain(Tree, data, path="tree")


def test_a_type_without_a_rule_is_refused():
    @dataclass(frozen=True)
    class Odd:
        value: object

    with pytest.raises(InputError, match="complex"):
        to_plain(Odd(1j))
