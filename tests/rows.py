"""Tables of plain values that tests go through, in a JSON file beside the test file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def rows(test_file: str) -> dict[str, Any]:
    """The tables in the JSON file beside a test file (``__file__``), by the name of the test."""
    tables: dict[str, Any] = json.loads(Path(test_file).with_suffix(".json").read_text(encoding="utf-8"))
    return tables
