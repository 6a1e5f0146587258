"""Every dict of plain data that TOML can hold reads back equal through the standard library."""

import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp4lab.errors import InputError
from fp4lab.specs import toml

TEXT = st.text(st.characters(exclude_categories=("Cs",)))
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    TEXT,
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
TABLES = st.recursive(
    st.dictionaries(TEXT, VALUES, max_size=4),
    lambda inner: st.dictionaries(
        TEXT, st.one_of(VALUES, inner, st.lists(inner, min_size=1, max_size=3)), max_size=4
    ),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None)
@given(TABLES)
def test_reads_back_equal(table):
    assert tomllib.loads(toml.dumps(table)) == table


@given(st.floats(allow_nan=False))
def test_floats_keep_every_bit(value):
    back = tomllib.loads(toml.dumps({"value": value}))["value"]
    assert type(back) is float
    assert math.copysign(1, back) == math.copysign(1, value)
    assert back == value


def test_nan_reads_back():
    assert math.isnan(tomllib.loads(toml.dumps({"value": math.nan}))["value"])


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ({"model": {"dim": None}}, "model.dim"),
        ({"seed": 2**63}, "seed"),
        ({"rules": [{"a": 1}, 2]}, "rules"),
        ({"rules": [2, {"a": 1}]}, "rules"),
        ({"values": [{1, 2}]}, "values"),
    ],
)
def test_what_toml_cannot_hold_is_named(table, path):
    with pytest.raises(InputError, match=path):
        toml.dumps(table)
