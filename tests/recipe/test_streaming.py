"""What a recipe may not ask for beside streamed data: one line each, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rows import rows
from zerokit.errors import RecipeError
from zerokit.recipe.load import load_recipe

ROWS = rows(__file__)

STREAMED = "model: org/name\ndata:\n  train: a.jsonl\n  streaming: true\n"
STEPS = "training:\n  max_steps: 5\n"


def load(text: str, folder: Path) -> None:
    file = folder / "recipe.yaml"
    file.write_text(text)
    load_recipe(file)


@pytest.mark.parametrize(
    "text",
    [
        STREAMED + STEPS,
        STREAMED + "  buffer_size: 3\n  eval: b.jsonl\n  max_examples: 7\n" + STEPS,
        STREAMED + "  eval_fraction: 0\n" + STEPS + "  train_sampling_strategy: sequential\n",
        STREAMED + "task: {type: masked_lm}\n" + STEPS + "  save_strategy: false\n",
        STREAMED + "task: {type: seq2seq}\n" + STEPS + "  dataloader_num_workers: 1\n",
    ],
)
def test_what_can_be_streamed(text: str, tmp_path: Path) -> None:
    load(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    ROWS["what_cannot_work_with_streamed_data_is_refused"],
)
def test_what_cannot_work_with_streamed_data_is_refused(
    text: str, where: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError) as caught:
        load(text, tmp_path)
    assert caught.value.exit_code == 2
    assert caught.value.where == f"{tmp_path / 'recipe.yaml'}{where}"
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
