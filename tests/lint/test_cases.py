"""Where rules find something and where not, by the rows of `cases.json`: rule, config, severity by path."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lint.asking import said

CASES: list[tuple[str, dict[str, Any], Any]] = json.loads(Path(__file__).with_name("cases.json").read_text())


@pytest.mark.parametrize(
    ("rule", "config", "expected"), CASES, ids=[f"{rule}-{number}" for number, (rule, *_) in enumerate(CASES)]
)
def test_a_rule_finds_what_the_row_says(rule: str, config: dict[str, Any], expected: Any) -> None:
    """A list has the same path several times."""
    pairs = expected.items() if isinstance(expected, dict) else map(tuple, expected)
    assert sorted(said(rule, config)) == sorted(pairs)
