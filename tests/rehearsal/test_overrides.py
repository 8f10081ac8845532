"""Keys that a rehearsal sets in whatever config DeepSpeed is given."""

from __future__ import annotations

import copy
from types import MappingProxyType
from typing import Any

import pytest

from zerokit.rehearsal.watching.overrides import merged


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"a": {"b": 1}, "c": None, "d": 3}),
        ({"a.b": 2, "a.x": 3}, {"a": {"b": 2, "x": 3}, "c": None, "d": 3}),
        ({"a": None, "e.f": None}, {"c": None, "d": 3}),
        ({"a.b": None}, {"a": {}, "c": None, "d": 3}),
        (
            {"c.x": 1, "d.y": 2, "e.f.g": 3},
            {"a": {"b": 1}, "c": {"x": 1}, "d": {"y": 2}, "e": {"f": {"g": 3}}},
        ),
    ],
)
def test_dotted_keys_are_set_and_none_removes_them(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    config = MappingProxyType({"a": MappingProxyType({"b": 1}), "c": None, "d": 3})
    assert merged(config, changes) == expected


def test_the_scripts_own_config_stays_what_it_was() -> None:
    config = {"a": {"b": {"c": 1}}, "d": [{"e": 1}]}
    before = copy.deepcopy(config)
    result = merged(config, {"a.x": 1})
    result["a"]["b"]["c"] = result["d"][0]["e"] = 2
    assert config == before
