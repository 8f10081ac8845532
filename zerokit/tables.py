"""Tables of facts: JSON files beside the modules that use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def table_of(module: str) -> Any:
    """Return the content of the JSON file with a module's name: ``table_of(__file__)``."""
    return json.loads(Path(module).with_suffix(".json").read_text(encoding="utf-8"))
