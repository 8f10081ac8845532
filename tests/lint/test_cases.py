"""Where rules find something and where not, by the rows of `cases.json`."""

from typing import Any

import pytest

from tests.json_data import load_json
from tests.lint.asking import said
from zerokit.lint.examples import run_facts

CASES: dict[str, list[list[Any]]] = load_json("lint/cases.json")
"""What is tried -> rows: rule, config, severity by path (or pairs of the two), facts of the run."""


@pytest.mark.parametrize("about", CASES)
def test_a_rule_finds_what_the_rows_say(about: str) -> None:
    for rule, config, expected, *run in CASES[about]:
        pairs = expected.items() if isinstance(expected, dict) else map(tuple, expected)
        found = said(rule, config, **run_facts(run[0] if run else {}))
        assert sorted(found) == sorted(pairs), (rule, config, run)
