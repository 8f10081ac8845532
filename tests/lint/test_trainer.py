"""A config against transformers' Trainer and what it does with accelerate's plugin."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.findings import Move, SetValue
from zerokit.lint.examples import recipe
from zerokit.releases.versions import parse_version
from zerokit.resolving.filled_keys import FILLED, FILLED_BY

COMPARED = [filled.path for filled in FILLED.values() if filled.other == "refused"]
TRAINER = {"target": "trainer"}
AUTO: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2},
}
FULL: dict[str, Any] = {
    **AUTO,
    "train_batch_size": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto",
        },
    },
}


def arguments(**changed: Any) -> SimpleNamespace:
    """What `HfTrainerDeepSpeedConfig` reads of TrainingArguments."""
    values = {
        "world_size": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 8,
        "max_grad_norm": 1.0,
        "learning_rate": 2e-5,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_epsilon": 1e-8,
        "weight_decay": 0.01,
        "save_on_each_node": False,
        "fp16": False,
        "fp16_full_eval": False,
        "bf16": True,
        "bf16_full_eval": False,
        "get_warmup_steps": lambda steps: 10,
        **changed,
    }
    return SimpleNamespace(**values)


def through_transformers(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The config as the Trainer fills it, and the dotted keys on which it insists in vain."""
    integration = pytest.importorskip("transformers.integrations.deepspeed")
    theirs = integration.HfTrainerDeepSpeedConfig(copy.deepcopy(config))
    theirs.trainer_config_process(arguments())
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=64))
    with pytest.raises(ValueError, match="mismatch") if _has_values(config) else _nothing():
        theirs.trainer_config_finalize(arguments(), model, 1000)
    return theirs.config, [line.split()[2].split("=")[0] for line in theirs.mismatches]


def _has_values(config: dict[str, Any]) -> bool:
    return any(_at(config, path) not in (None, "auto") for path in COMPARED)


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def _at(config: dict[str, Any], path: tuple[str, ...]) -> Any:
    node: Any = config
    for key in path:
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _with(config: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    result = copy.deepcopy(config)
    node = result
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return result


@pytest.mark.torch
@pytest.mark.parametrize("path", COMPARED, ids=".".join)
def test_the_trainer_insists_on_what_is_listed(path: tuple[str, ...]) -> None:
    value: Any = [0.5, 0.6] if path[-1] == "betas" else True if path == ("fp16", "enabled") else 3
    if path == ("bf16", "enabled"):
        value = False
    config = _with(FULL, path, value)
    _, mismatches = through_transformers(config)
    assert mismatches == [".".join(path)]
    expected = [] if value is False else [(".".join(path), "info")]
    assert said("fixed-value", config, **TRAINER) == expected


@pytest.mark.torch
def test_the_trainer_fills_the_rest() -> None:
    filled, mismatches = through_transformers(FULL)
    assert mismatches == []
    assert "auto" not in str(filled)
    assert said("fixed-value", FULL, **TRAINER) == []
    assert {".".join(path) for path in COMPARED} <= FILLED_BY["trainer"]


def test_values_that_are_fixed_are_named_together() -> None:
    config = {**AUTO, "gradient_clipping": 0.5, "train_micro_batch_size_per_gpu": 4}
    (finding,) = found("fixed-value", config, **TRAINER)
    assert "2 values" in finding.message
    assert found("fixed-value", config, target="accelerate") == found("fixed-value", config) == []
    assert found("fixed-value", config, target="trainer", recipe=recipe()) == []


def test_absent_keys_lose_arguments() -> None:
    rule, config = "lost-argument", zero(2)
    assert said(rule, config, **TRAINER) == [("", "warning"), ("", "info")]
    assert said(rule, AUTO, **TRAINER) == said(rule, config, target="accelerate") == []
    misspelled = {**config, "gradient_acumulation_steps": 4}
    assert said(rule, misspelled, **TRAINER) == [("", "warning")]  # of clipping alone
    assert said(rule, config, target="trainer", recipe=recipe()) == []
    beside = {**config, "train_batch_size": "auto"}
    assert said(rule, beside, **TRAINER) == [("", "warning"), ("", "warning")]  # it stops what accumulates
    old = parse_version("0.19.2")
    messages = [finding.message for finding in found(rule, config, target="trainer", deepspeed_version=old)]
    assert "does not clip" in messages[0]


def test_absent_parameters_lose_arguments() -> None:
    rule = "lost-argument"
    adam: dict[str, Any] = {**AUTO, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
    (finding,) = found(rule, adam, **TRAINER)
    assert finding.message.startswith("'weight_decay' is absent, so it is 0 ")
    assert finding.fix == (SetValue(("optimizer", "params", "weight_decay"), "auto"),)
    torch_adam = _with(adam, ("optimizer", "params", "torch_adam"), True)
    assert "so it is 0.01 " in found(rule, torch_adam, **TRAINER)[0].message
    assert found(rule, {**AUTO, "optimizer": {"type": "LBFGS", "params": {"lr": 1}}}, **TRAINER) == []
    warmup = {**AUTO, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}}}
    assert said(rule, warmup, **TRAINER) == [("scheduler", "warning")]
    assert found(rule, {**AUTO, "scheduler": {"type": "StepLR", "params": {"step_size": 1}}}, **TRAINER) == []


@pytest.mark.torch
def test_the_defaults_that_are_named_are_deepspeeds() -> None:
    lr_schedules = pytest.importorskip("deepspeed.runtime.lr_schedules")
    adam = pytest.importorskip("deepspeed.ops.adam")
    inspect = pytest.importorskip("inspect")
    for schedule in (lr_schedules.WarmupLR, lr_schedules.WarmupDecayLR, lr_schedules.WarmupCosineLR):
        assert inspect.signature(schedule).parameters["warmup_num_steps"].default == 1000
    for optimizer in (adam.FusedAdam, adam.DeepSpeedCPUAdam):
        assert inspect.signature(optimizer).parameters["weight_decay"].default == 0


@pytest.mark.torch
def test_zero_as_a_switch_cannot_be_read() -> None:
    accelerate = pytest.importorskip("accelerate.utils.deepspeed")
    config = {**MICRO, "zero_optimization": True}
    with pytest.raises(AttributeError, match="'bool' object has no attribute 'get'"):
        accelerate.HfDeepSpeedConfig(config)
    rule = "zero-as-switch"
    for target in ("trainer", "accelerate"):
        assert said(rule, config, target=target) == [("zero_optimization", "error")]
    assert said(rule, config, target="deepspeed") == said(rule, config) == []
    assert found(rule, config, **TRAINER)[0].fix == (SetValue(("zero_optimization",), {"stage": 1}),)


@pytest.mark.torch
@pytest.mark.parametrize("mixed_precision", ["no", "bf16"])
def test_bfloat16_is_passed_over(mixed_precision: str) -> None:
    dataclasses = pytest.importorskip("accelerate.utils.dataclasses")
    ds_config = pytest.importorskip("deepspeed.runtime.config")
    config = {**AUTO, **MICRO, "gradient_accumulation_steps": 1, "bfloat16": {"enabled": True}}
    plugin = dataclasses.DeepSpeedPlugin(hf_ds_config=config)
    plugin.set_mixed_precision(mixed_precision)
    handed = {key: value for key, value in plugin.deepspeed_config.items() if key != "steps_per_print"}
    assert ds_config.DeepSpeedConfig(handed).bfloat16_config.enabled is (mixed_precision == "bf16")
    rule = "bfloat16-section"
    assert said(rule, config, **TRAINER) == [("bfloat16", "error")]
    # The Trainer would compare it then, and stop where its arguments do not say bf16.
    assert found(rule, config, **TRAINER)[0].fix == ()
    assert found(rule, config, target="accelerate")[0].fix == (Move(("bfloat16",), ("bf16",)),)
    assert said(rule, config, target="deepspeed") == []
    assert said(rule, {**config, "bfloat16": {"enabled": False}}, **TRAINER) == []


@pytest.mark.torch
def test_what_accelerate_overwrites() -> None:
    dataclasses = pytest.importorskip("accelerate.utils.dataclasses")
    config = {**AUTO, "steps_per_print": 100}
    plugin = dataclasses.DeepSpeedPlugin(hf_ds_config=config)
    assert plugin.deepspeed_config["steps_per_print"] == float("inf")
    rule = "overwritten-key"
    assert said(rule, config, **TRAINER) == [("steps_per_print", "info")]
    assert said(rule, config, target="accelerate") == [("steps_per_print", "info")]
    assert said(rule, config, target="deepspeed") == []
    allowed = {**AUTO, "zero_allow_untested_optimizer": False}
    assert said(rule, allowed, **TRAINER) == [("zero_allow_untested_optimizer", "warning")]
    assert said(rule, {**FULL, "zero_allow_untested_optimizer": False}, **TRAINER) == []
