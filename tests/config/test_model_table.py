"""Rows of JSON become models; a wrong word in a row is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.config import params, sections
from zerokit.config.base import Section
from zerokit.config.model_table import ModelTable

ROW_WORDS = {"acts_without_switch", "bases", "keys", "needed_when_enabled", "read_by", "switch", "text", "types"}
KEY_WORDS = {
    *("any_case", "auto", "choices", "default", "deprecated", "ge", "groups", "gt", "items", "le", "lt", "mapping"),
    *("max_length", "min_length", "needed", "not_null", "null", "null_items", "or_switch", "pattern", "second_name"),
    *("section", "since", "stages", "tested", "text", "type", "unit", "when"),
}


@pytest.mark.parametrize("module", [sections, params])
def test_each_row_becomes_a_model(module: Any) -> None:
    for name, row in module._TABLE.rows.items():
        assert row.get("keys", {}).keys() <= module._TABLE.model(name).model_fields.keys()
        assert row.keys() <= ROW_WORDS, name
        for key, spec in row.get("keys", {}).items():
            assert spec.keys() <= KEY_WORDS, (name, key)


def test_a_key_without_a_text_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"Row": {"text": "A section.", "keys": {"a": {"type": "whole"}}}}))
    with pytest.raises(ValueError, match=r"Row\.a has no text"):
        ModelTable(file, __name__, Section).model("Row")
