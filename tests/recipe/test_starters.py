"""The recipes to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from zerokit.errors import RecipeError
from zerokit.recipe import load_recipe
from zerokit.recipe.model import KEYS_OF, TASK_SYNONYMS, PeftType, TaskType
from zerokit.recipe.starters import starter


@pytest.mark.parametrize("task", get_args(TaskType))
def test_each_task_has_a_recipe_that_loads(task: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(starter(task))
    recipe = load_recipe(file).recipe
    assert recipe.task.type == task
    assert recipe.data.train == "my.jsonl"
    assert "save_steps" in recipe.training
    texts = {starter(other) for other in get_args(TaskType)}
    assert len(texts) == len(get_args(TaskType))
    switches = {"padding_free", "chunked_loss", "loss_on", "predict_with_generate"}
    own = {key for key, types in KEYS_OF.items() if types == (task,)} - switches
    assert own <= recipe.task.model_fields_set


@pytest.mark.parametrize("type_", get_args(PeftType))
def test_each_adapter_has_a_recipe_that_loads(type_: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    for task in ("causal_lm", "sequence_classification", "dpo"):
        file.write_text(starter(task, type_))
        recipe = load_recipe(file).recipe
        assert (recipe.peft or {})["type"] == type_
        assert recipe.training["learning_rate"] > load_plain(task, tmp_path)["learning_rate"]
        assert not (type_ == "prefix_tuning" and recipe.training.get("gradient_checkpointing"))
    with pytest.raises(RecipeError, match=r"'lorra' is not a choice here\. Did you mean 'lora'"):
        starter("causal_lm", "lorra")


def load_plain(task: str, folder: Path) -> dict[str, Any]:
    (folder / "plain.yaml").write_text(starter(task))
    return load_recipe(folder / "plain.yaml").recipe.training


def test_a_task_that_is_not_there_is_named() -> None:
    with pytest.raises(RecipeError, match=r"'ppo' is not a choice here\. Choose one of: causal_lm, "):
        starter("ppo")
    with pytest.raises(RecipeError, match=r"'SFT' is not a choice here\. Write causal_lm$"):
        starter("SFT")
    assert {*TASK_SYNONYMS.values()} == {*get_args(TaskType)}


@pytest.mark.parametrize("task", get_args(TaskType))
def test_a_small_model_gets_a_batch_that_fills_a_gpu(task: str) -> None:
    training = yaml.safe_load(starter(task))["training"]
    is_small = task not in ("causal_lm", "dpo")
    assert training["per_device_train_batch_size"] == (16 if is_small else 1)
    assert ("gradient_checkpointing" in training) is not is_small
    assert ("eval_strategy" in training) is is_small
