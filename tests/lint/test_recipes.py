"""A config against the recipe that it is run with."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lint.asking import found, said
from zerokit.errors import ConfigError
from zerokit.lint import check_config
from zerokit.lint.examples import recipe
from zerokit.resolving.contradictions import resolve_for_trainer

AUTO: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2},
}
ADAMW = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}
WARMUP = {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}


def params(section: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {**section, "params": {**section["params"], **changed}}


CASES: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    ({**AUTO, "gradient_clipping": 0.5}, {"max_grad_norm": 1.0}, "gradient_clipping"),
    ({**AUTO, "gradient_clipping": 1}, {"max_grad_norm": 1.0}, None),
    ({**AUTO, "gradient_clipping": 0.5}, {}, None),
    (
        {**AUTO, "train_micro_batch_size_per_gpu": 4},
        {"per_device_train_batch_size": 8},
        "train_micro_batch_size_per_gpu",
    ),
    ({**AUTO, "gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 2}, None),
    ({**AUTO, "bf16": {"enabled": False}}, {"bf16": True}, "bf16.enabled"),
    ({**AUTO, "bf16": {"enabled": True}}, {"bf16": True}, None),
    ({**AUTO, "optimizer": params(ADAMW, lr=1e-4)}, {"learning_rate": 2e-5}, "optimizer.params.lr"),
    ({**AUTO, "optimizer": params(ADAMW, betas=[0.9, 0.95])}, {"adam_beta2": 0.95}, None),
    ({**AUTO, "optimizer": params(ADAMW, betas=[0.9, 0.95])}, {"adam_beta2": 0.999}, "optimizer.params.betas"),
    (
        {**AUTO, "scheduler": params(WARMUP, total_num_steps=500)},
        {"max_steps": 1000},
        "scheduler.params.total_num_steps",
    ),
    ({**AUTO, "scheduler": params(WARMUP, total_num_steps=500)}, {}, "scheduler.params.total_num_steps"),
    ({**AUTO, "scheduler": params(WARMUP, total_num_steps=500)}, {"max_steps": 500}, None),
    (
        {**AUTO, "scheduler": params(WARMUP, warmup_num_steps=10)},
        {"warmup_steps": 20},
        "scheduler.params.warmup_num_steps",
    ),
    ({**AUTO, "train_batch_size": 64}, {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}, None),
    (
        {**AUTO, "train_batch_size": 48},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        "train_batch_size",
    ),
]


@pytest.mark.parametrize(("config", "training", "path"), CASES)
def test_train_py_refuses_the_same(config: dict[str, Any], training: dict[str, Any], path: str | None) -> None:
    try:
        resolve_for_trainer(config, training, default_precision="bf16", world_size=8)
    except ConfigError:
        assert path is not None
    else:
        assert path is None


def test_sections_replace_arguments_of_the_recipe() -> None:
    rule = "replaced-recipe-argument"
    both = {**AUTO, "optimizer": ADAMW, "scheduler": WARMUP}
    given = recipe(training={"optim": "adafactor", "lr_scheduler_type": "cosine"})
    assert said(rule, both, recipe=given) == [("optimizer", "error"), ("scheduler", "error")]
    assert said(rule, AUTO, recipe=given) == said(rule, both, recipe=recipe()) == []
    assert said(rule, both) == []
    assert rule in check_config(both).not_run


def test_arguments_of_the_recipe_that_do_not_arrive() -> None:
    rule = "lost-recipe-argument"
    adam = {**AUTO, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
    (finding,) = found(rule, adam, recipe=recipe(training={"weight_decay": 0.1}))
    assert finding.message == ("the recipe's weight_decay 0.1 is lost: 'weight_decay' is absent, so it is 0")
    assert found(rule, adam, recipe=recipe(training={"weight_decay": 0.0})) == []
    assert found(rule, adam, recipe=recipe(training={"adam_beta2": 0.95}))
    assert found(rule, adam, recipe=recipe(training={"adam_beta2": 0.999})) == []
    assert found(rule, AUTO, recipe=recipe(training={"weight_decay": 0.1})) == []
    warmup = {**AUTO, "scheduler": {"type": "WarmupLR", "params": {}}}
    (finding,) = found(rule, warmup, recipe=recipe(training={"warmup_steps": 50}))
    assert finding.message.endswith("so it is 1000")
    assert found(rule, warmup, recipe=recipe(training={"learning_rate": 1e-5})) == []
