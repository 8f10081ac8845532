"""Paths into nested data, against the plain way of doing the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zerokit.documents import ABSENT, KeyPath, dotted, has_value, leaves, split_dotted, value_at, with_value, without

NAMES = st.sampled_from(["a", "b", "c"])
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
PATHS = st.lists(NAMES | st.integers(0, 2), min_size=1, max_size=4).map(tuple)


def plainly(data: Any, path: KeyPath) -> Any:
    """`data[a][b]...`, or ABSENT; an index is not taken for a key, nor a key for an index."""
    for key in path:
        if not isinstance(data, list if isinstance(key, int) else dict):
            return ABSENT
        try:
            data = data[key]
        except (KeyError, IndexError):
            return ABSENT
    return data


@given(DATA, PATHS)
def test_a_value_is_what_the_steps_lead_to(data: Any, path: KeyPath) -> None:
    assert value_at(data, path, ABSENT) is plainly(data, path)
    assert has_value(data, path) == (plainly(data, path) is not ABSENT)
    assert value_at(data, path) is (None if plainly(data, path) is ABSENT else plainly(data, path))


@given(DATA, PATHS, DATA)
def test_what_is_set_is_read_and_the_rest_stays(data: Any, path: KeyPath, value: Any) -> None:
    before = copy.deepcopy(data)
    try:
        changed = with_value(data, path, value)
    except KeyError:
        # Something on the way is neither a section nor an item that is there.
        ends = [plainly(data, path[:end]) for end in range(len(path))]
        steps = zip(ends, path, strict=True)
        assert any(found is not ABSENT and not isinstance(found, dict) for found, _ in steps) or any(
            isinstance(key, int) for key in path
        )
        assume(all(isinstance(key, str) for key in path))
        changed = with_value(data, path, value, replace=True)
    assert data == before
    assert plainly(changed, path) == value or any(isinstance(key, int) for key in path)
    if isinstance(data, dict):
        assert all(changed[key] is data[key] for key in data if key != path[0])
        assert list(changed)[: len(data)] == list(data)


@given(DATA, PATHS)
def test_what_is_removed_is_gone_and_the_rest_stays(data: Any, path: KeyPath) -> None:
    before = copy.deepcopy(data)
    if plainly(data, path) is ABSENT:
        with pytest.raises(KeyError):
            without(data, path)
        return
    expected = copy.deepcopy(data)
    del plainly(expected, path[:-1])[path[-1]]
    assert without(data, path) == expected
    assert data == before


@given(st.dictionaries(NAMES, DATA))
def test_leaves_build_the_data_again(data: dict[str, Any]) -> None:
    built: Any = {}
    for path, value in leaves(data):
        assert not isinstance(value, dict) or not value
        built = with_value(built, path, value)
    assert built == data


@given(st.lists(NAMES, min_size=1).map(tuple))
def test_names_of_paths_are_read_back(path: KeyPath) -> None:
    assert split_dotted(dotted(path)) == path


def test_null_on_the_way_is_no_section_unless_it_may_be_replaced() -> None:
    with pytest.raises(KeyError):
        with_value({"a": None}, ("a", "b"), 1)
    assert with_value({"a": None, "c": 2}, ("a", "b"), 1, replace=True) == {"a": {"b": 1}, "c": 2}
