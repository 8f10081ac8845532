"""The recipes that README and guides show can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.tiny import REPOSITORY
from zerokit.recipe.load import load_recipe

BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = ["README.md", "docs/getting-started.md"] + [
    f"docs/how-to/{name}.md" for name in ("fine-tune", "prepare-data", "lora", "dpo", "other-tasks")
]
SHOWN = [(page, block) for page in PAGES for block in BLOCK.findall((REPOSITORY / page).read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "block"), SHOWN, ids=lambda one: one.splitlines()[0][:30])
def test_a_recipe_can_be_read(page: str, block: str, tmp_path: Path) -> None:
    whole = {"model": "m", "data": {"train": "d.jsonl"}, **yaml.safe_load(block)}  # a block may be a section
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    assert load_recipe(tmp_path / "r.yaml").recipe.training == whole.get("training", {})


def test_recipes_are_shown() -> None:
    assert {page for page, _ in SHOWN} >= {"README.md", "docs/how-to/fine-tune.md"}
