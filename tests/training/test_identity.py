"""Whether a run that resumes is the run that it was."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset

from zerokit.config.base import ZERO
from zerokit.recipe.model import Recipe
from zerokit.training.identity import Identity, differences, identify


def of_run(examples: int = 1, **sections: Any) -> Identity:
    """Of a run of two ranks, with these sections of its recipe."""
    recipe = {"model": "m", "data": {"train": "a.jsonl"}, "deepspeed": {}, **sections}
    loaded: Any = SimpleNamespace(recipe=Recipe.model_validate(recipe), where=lambda *_: "")
    args: Any = SimpleNamespace(to_dict=dict, per_device_train_batch_size=1, gradient_accumulation_steps=1)
    ds_config = {**recipe["deepspeed"], ZERO: {"stage": 2, **recipe["deepspeed"].get(ZERO, {})}}
    model: Any = SimpleNamespace(folder=None, config=SimpleNamespace(to_dict=dict))
    train = Dataset.from_dict({"input_ids": [[examples]]})
    return identify(loaded, args, ds_config, model, train, world_size=2, data_ranks=2)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({}, {"task": {"type": "causal_lm", "seq_len": 1024}}),
        ({"task": {"type": "dpo"}}, {"task": {"type": "dpo", "beta": 0.1}}),
        ({"peft": {"r": 8}}, {"peft": {"type": "lora", "lora_dropout": 0.0, "bias": "none"}}),
        (
            {},
            {
                "deepspeed": {
                    ZERO: {"round_robin_gradients": "auto", "parameter_alignment": False, "sub_group_size": 1e9}
                }
            },
        ),
        ({}, {"deepspeed": {"fp16": {"enabled": False}, "zero_force_ds_cpu_optimizer": True}}),
    ],
)
def test_a_default_is_the_same_written_or_not(was: dict[str, Any], now: dict[str, Any]) -> None:
    for one, other in ((was, now), (now, was)):
        assert differences(of_run(**one), of_run(**other)) == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"task": {"type": "dpo"}}, "task.type is dpo, was not set"),
        ({"peft": {}}, "peft.type is lora, was not set"),
        *(
            ({"deepspeed": {ZERO: {key: True}}}, f"deepspeed.{ZERO}.{key} is true, was not set")
            for key in ("round_robin_gradients", "parameter_alignment")
        ),
        ({"deepspeed": {"fp16": {"enabled": True}}}, "deepspeed.fp16.enabled is true, was not set"),
    ],
)
def test_what_is_learned_otherwise_is_named(now: dict[str, Any], said: str) -> None:
    assert differences(of_run(), of_run(**now)) == [said]


def test_replaced_files_of_a_stream_are_another_run() -> None:
    was, now = (replace(of_run(), streamed_files=name) for name in "ab")
    assert differences(was, replace(now, streamed_files="a")) == []
    assert differences(was, now) == ["the content of the streamed files has changed"]


def test_what_made_other_examples_is_told_but_for_defaults() -> None:
    now = of_run(examples=2, data={"train": "b.jsonl", "format": "auto"}, task={"loss_on": "completion"})
    assert differences(of_run(), now) == ["the training examples differ (as many), data.train is b.jsonl, was a.jsonl"]
