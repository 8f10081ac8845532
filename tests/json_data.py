"""Large tables of plain values that tests use, as JSON files in the folders of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load_json(file: str) -> Any:
    """Return the content of a JSON file, named relative to ``tests/``."""
    return json.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))
