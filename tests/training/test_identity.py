"""Which run a checkpoint is of, and what would make it another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset

from zerokit.recipe import load_recipe
from zerokit.training.identity import Identity, differences, identify


def of(**zero: Any) -> Identity:
    """A run of a ds_config."""
    args: Any = SimpleNamespace(per_device_train_batch_size=1, gradient_accumulation_steps=1, to_dict=dict)
    model: Any = SimpleNamespace(folder=None, config=SimpleNamespace(to_dict=dict))
    train = Dataset.from_dict({"input_ids": [[1, 2]]})
    ds_config = {"zero_optimization": {"stage": 2, **zero}}
    return identify(load_recipe(), args, ds_config, model, train, world_size=2)


@pytest.mark.parametrize("key", ["round_robin_gradients", "parameter_alignment"])
def test_a_run_whose_parameters_lie_elsewhere_is_another(key: str) -> None:
    (difference,) = differences(of(), of(**{key: True}))
    assert difference == f"deepspeed.zero_optimization.{key} is true, was not set"
    assert len(differences(of(**{key: True}), of())) == 1
    assert differences(of(), of(**{key: False})) == differences(of(), of(**{key: "auto"})) == []
