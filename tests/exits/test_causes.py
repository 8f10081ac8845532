"""What a line alone means, in the words that libraries, launchers and schedulers print."""

from __future__ import annotations

import re

import pytest

from tests.exits.explained import explain
from tests.json_data import load_json
from zerokit.exits.explain import Explanation

LINES = load_json("exits/lines.json")
"""Each line with the id of its cause, and a part of the message."""
LIBRARY_LINES = load_json("exits/library_lines.json")
"""Last lines of tracebacks, in the same form."""
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 7, in <module>',
    "    main()",
)


@pytest.mark.parametrize("row", LINES, ids=lambda row: row["line"][:60])
def test_line_has_its_cause(row: dict[str, str]) -> None:
    expect(row, explain(row["line"]), 2)


@pytest.mark.parametrize("row", LIBRARY_LINES, ids=lambda row: row["line"][:90])
def test_library_error_has_its_cause(row: dict[str, str]) -> None:
    expect(row, explain(*TRACEBACK, row["line"]), 5)


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: Network Adapter eth0 not found",
        "FileNotFoundError: Unable to find '/usr/bin/nvcc'",
        "FileNotFoundError: Directory /scratch not found",
        "KeyError: 'prompt'",
        "ValueError: unknown split of the pipeline",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 0x768)",
        "ValueError: our service does not support DoRA's format",
        "ConnectionError: Couldn't reach the database",
    ],
)
def test_exceptions_of_other_programs_get_no_cause(line: str) -> None:
    assert explain(*TRACEBACK, line).cause == "exception"


def test_what_a_library_passes_on_is_explained_by_the_exception_above_it() -> None:
    found = explain(
        *TRACEBACK,
        "pyarrow.lib.ArrowInvalid: JSON parse error: Column(/text) changed from string to array in row 3",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *TRACEBACK,
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
    )
    assert (found.cause, found.line) == ("dataset-rows", 5)


def expect(row: dict[str, str], found: Explanation, line: int) -> None:
    assert (found.cause, row.get("message", "") in found.message) == (row["cause"], True), found.message
    assert found.line == line
    assert found.text == " ".join(row["line"].split())
    assert not re.search(r"\{\w+\}|<[A-Z_]+>", f"{found.message} {found.fix}".replace("{'': local_rank}", ""))
