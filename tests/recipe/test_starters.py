"""The recipes to start from."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from zerokit.errors import RecipeError
from zerokit.recipe import load_recipe
from zerokit.recipe.model import KEYS_OF, TaskType
from zerokit.recipe.starters import starter


@pytest.mark.parametrize("task", get_args(TaskType))
def test_each_task_has_a_recipe_that_loads(task: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(starter(task))
    recipe = load_recipe(file).recipe
    assert recipe.task.type == task
    assert recipe.data.train == "my.jsonl"
    texts = {starter(other) for other in get_args(TaskType)}
    assert len(texts) == len(get_args(TaskType))
    switches = {"padding_free", "chunked_loss", "loss_on", "predict_with_generate"}
    own = {key for key, types in KEYS_OF.items() if types == (task,)} - switches
    assert own <= recipe.task.model_fields_set


def test_a_task_that_is_not_there_is_named() -> None:
    with pytest.raises(RecipeError, match=r"no task 'seq2sec'\. Did you mean 'seq2seq'"):
        starter("seq2sec")
