"""What the recorded rehearsals of very long sequences show."""

from __future__ import annotations

import json

import pytest

from tests.validation.parallelism.alst_lengths import WRITTEN
from tests.validation.parallelism.long_context import VARIANTS
from tests.validation.parallelism.long_context import WRITTEN as CONTEXTS


@pytest.mark.parametrize("row", json.loads(WRITTEN.read_text(encoding="utf-8")).items(), ids=lambda row: row[0])
def test_published_lengths_fit_and_the_longest_is_near(row: tuple[str, dict[str, object]]) -> None:
    name, found = row
    assert isinstance(found["error"], float)
    assert 0 <= found["error"] <= (0.11 if name.startswith("llama-8b") else 0.4)


def test_each_part_of_the_recipe_saves_memory_of_the_gpu() -> None:
    rows = json.loads(CONTEXTS.read_text(encoding="utf-8"))
    usual = rows.pop("as it is")
    assert usual["fits"]
    assert all(rows[name]["gpu_peak_gib"] > usual["gpu_peak_gib"] for name in VARIANTS if name in rows)
