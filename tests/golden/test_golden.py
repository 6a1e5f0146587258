"""Arrays that other tools computed, matched to the last byte through the public functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.golden import arrays, catalogue


def groups() -> dict[str, tuple[str, list[str]]]:
    """Keys of one input and configuration, which are tested together."""
    found: dict[str, tuple[str, list[str]]] = defaultdict(lambda: ("", []))
    for file in catalogue.FILES:
        for key in catalogue.applicable(file):
            name = f"{file}/{key.rpartition('/')[0] or key}"
            found[name] = (file, [*found[name][1], key])
    return dict(found)


GROUPS = groups()


@pytest.mark.parametrize("name", GROUPS)
def test_golden_arrays_match(name: str, record_property: Callable[[str, object], None]) -> None:
    file, keys = GROUPS[name]
    for key in keys:
        record_property("golden", f"{file}.npz/{key}")
        outcome = catalogue.compare(file, key)
        assert outcome.compared > 0, key
        assert outcome.different == 0, key


@pytest.mark.parametrize("file", catalogue.FILES)
def test_every_golden_array_is_compared_or_named_with_a_reason(file: str) -> None:
    for key in arrays.load(file):
        claims = len(catalogue.family_of(file, key))
        if catalogue.reason_not(file, key) is None:
            assert claims == 1, f"{key} is claimed by {claims} families"


def test_every_reason_applies_to_some_golden_array() -> None:
    for file, pattern, _ in catalogue.NOT_APPLICABLE:
        assert any(catalogue.reason_not(file, key) for key in arrays.load(file)), pattern


def test_every_golden_file_is_in_the_catalogue() -> None:
    assert sorted(path.stem for path in arrays.FOLDER.glob("*.npz")) == sorted(catalogue.FILES)


def test_golden_inputs_are_all_used() -> None:
    used = {key.partition("/")[0] for file in catalogue.FILES for key in arrays.load(file)}
    names = {"multi_tile_256" if name == "normal_256x256" else name for name in used}
    assert set(arrays.load("inputs")) <= names
