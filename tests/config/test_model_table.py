"""Rows of JSON become models; a wrong word in a row is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.config import params, sections
from zerokit.config.base import Section
from zerokit.config.model_table import ModelTable


@pytest.mark.parametrize("module", [sections, params])
def test_each_row_becomes_a_model(module: Any) -> None:
    for name, row in module._TABLE.rows.items():
        assert row.get("keys", {}).keys() <= module._TABLE.model(name).model_fields.keys()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"keys": {"a": {"type": "whole", "text": "A.", "defualt": 1}}}, "Row.a: unknown defualt"),
        ({"keys": {"a": {"type": "whole", "text": "A.", "minimum": 1}}}, "Row.a: unknown minimum"),
        ({"keys": {"a": {"type": "whole", "text": "A.", "stage": [3]}}}, "Row.a: unknown stage"),
        ({"keys": {"a": {"type": "whole"}}}, "Row.a has no text"),
        ({"swich": "enabled"}, "Row: unknown swich"),
    ],
)
def test_a_wrong_row_is_an_error(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"Row": {"text": "A section.", **row}}))
    with pytest.raises(ValueError, match=message):
        ModelTable(file, __name__, Section).model("Row")
