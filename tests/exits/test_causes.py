"""What a line alone means, in the words that libraries, launchers and schedulers print."""

from __future__ import annotations

import pytest

from tests.exits.explained import explain
from tests.json_data import load_json

LINES = load_json("exits/lines.json")
"""Each line with the id of its cause, and a part of the message."""


@pytest.mark.parametrize("row", LINES, ids=lambda row: row["line"][:60])
def test_line_has_its_cause(row: dict[str, str]) -> None:
    found = explain(row["line"])
    assert (found.cause, row.get("message", "") in found.message) == (row["cause"], True), found.message
    assert found.line == 2
    assert found.text == " ".join(row["line"].split())
    assert "{" not in found.message.replace("{'id'", "") + (found.fix or "").replace("{'': local_rank}", "")
