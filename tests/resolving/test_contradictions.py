"""A ds_config and TrainingArguments that say the same, or an error that names both."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.json_data import load_json
from zerokit.errors import ConfigError
from zerokit.hardware.cluster import DATA_PARALLEL, Parallelism
from zerokit.resolving.contradictions import Resolved, resolve_for_trainer

ROWS = load_json("resolving/test_contradictions.json")


def resolve(
    ds_config: dict[str, Any],
    training: dict[str, Any],
    *,
    precision: str = "fp32",
    world_size: int = 1,
    parallelism: Parallelism = DATA_PARALLEL,
) -> Resolved:
    return resolve_for_trainer(
        ds_config,
        training,
        default_precision=precision,
        world_size=world_size,
        parallelism=parallelism,
        ds_where="ds.json",
        where=lambda name: f"recipe.yaml:1 (training.{name})",
    )


def test_where_both_are_silent_the_arguments_are_passed_on_as_auto() -> None:
    resolved = resolve({}, {})
    assert resolved.ds_config == {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {},
    }
    assert resolved.training == {"bf16": False, "fp16": False}


def test_the_arguments_given_are_left_as_they_were() -> None:
    ds_config = {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}
    training = {"learning_rate": 1.0}
    before = copy.deepcopy((ds_config, training))
    resolve(ds_config, training, precision="bf16")
    assert (ds_config, training) == before


@pytest.mark.parametrize(
    ("ds_config", "adopted"),
    [
        ({"train_micro_batch_size_per_gpu": 3}, {"per_device_train_batch_size": 3}),
        ({"gradient_accumulation_steps": 5}, {"gradient_accumulation_steps": 5}),
        ({"gradient_clipping": 0.25}, {"max_grad_norm": 0.25}),
        ({"bf16": {"enabled": True}}, {"bf16": True, "fp16": False}),
        ({"fp16": {"enabled": True}}, {"fp16": True, "bf16": False}),
        (
            {
                "optimizer": {
                    "type": "AdamW",
                    "params": {"lr": 3e-4, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.3},
                }
            },
            {"learning_rate": 3e-4, "adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-6, "weight_decay": 0.3},
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 2e-4, "warmup_num_steps": 7}}},
            {"learning_rate": 2e-4, "warmup_steps": 7},
        ),
    ],
)
def test_a_ds_config_speaks_for_the_arguments(ds_config: dict[str, Any], adopted: dict[str, Any]) -> None:
    assert adopted.items() <= resolve(ds_config, {}).training.items()


@pytest.mark.parametrize(("ds_config", "training", "argument", "key"), ROWS["a_contradiction_names_both_places"])
def test_a_contradiction_names_both_places(
    ds_config: dict[str, Any], training: dict[str, Any], argument: str, key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(ds_config, training)
    assert caught.value.where == f"recipe.yaml:1 (training.{argument})"
    assert key in caught.value.message
    assert "ds.json" in caught.value.message
    assert caught.value.hint


def test_the_same_value_on_both_sides_is_no_contradiction() -> None:
    ds_config = {
        "gradient_clipping": 1,
        "train_micro_batch_size_per_gpu": 4,
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}},
    }
    training = {"max_grad_norm": 1.0, "per_device_train_batch_size": 4, "max_steps": 9}
    assert training.items() <= resolve(ds_config, training).training.items()


@pytest.mark.parametrize("training", [{"bf16": True, "fp16": True}, {}])
def test_bf16_and_fp16_together_are_refused(training: dict[str, Any]) -> None:
    ds_config = {} if training else {"bf16": {"enabled": True}, "fp16": {"enabled": True}}
    with pytest.raises(ConfigError, match="both bf16 and fp16 are on") as caught:
        resolve(ds_config, training)
    assert ("ds.json" in caught.value.message) == (not training)


@pytest.mark.parametrize(
    ("ds_config", "training", "default", "expected"),
    [
        ({}, {}, "bf16", "bf16"),
        ({}, {}, "fp16", "fp16"),
        ({}, {}, "fp32", "fp32"),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, {}, "fp16", "fp16"),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}, {"bf16": True}, "fp16", "bf16"),
        ({"bf16": {"enabled": False}}, {}, "bf16", "fp32"),
        ({}, {"bf16": False}, "bf16", "fp32"),
        ({"fp16": {"enabled": "auto", "loss_scale": 0}}, {"fp16": True}, "bf16", "fp16"),
    ],
)
def test_exactly_one_precision_is_explicit_on_both_sides(
    ds_config: dict[str, Any], training: dict[str, Any], default: str, expected: str
) -> None:
    resolved = resolve(ds_config, training, precision=default)
    for name in ("bf16", "fp16"):
        assert resolved.training[name] is (name == expected)
        section = resolved.ds_config.get(name, {"enabled": False})
        assert section["enabled"] is (name == expected)
    if "loss_scale" in ds_config.get("fp16", {}):
        assert resolved.ds_config["fp16"]["loss_scale"] == 0


def test_train_batch_size_must_be_what_the_other_three_give() -> None:
    training = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
    assert resolve({"train_batch_size": 24}, training, world_size=4).training.items() >= training.items()
    with pytest.raises(ConfigError) as caught:
        resolve({"train_batch_size": 25}, training, world_size=4)
    assert caught.value.where == "ds.json"
    assert "train_batch_size is 25, but 2 per GPU x 3 accumulation steps x 4 ranks is 24" in str(caught.value)
    for groups, parallelism in (
        ("1 group of 4 ranks", Parallelism(4)),
        ("2 groups of 2 ranks", Parallelism(tensor=2)),
    ):
        with pytest.raises(ConfigError, match=f"3 accumulation steps x {groups} is"):
            resolve({"train_batch_size": 25}, training, world_size=4, parallelism=parallelism)


def test_train_batch_size_decides_the_accumulation_where_it_is_absent() -> None:
    resolved = resolve({"train_batch_size": 24}, {"per_device_train_batch_size": 2}, world_size=4)
    assert resolved.training["gradient_accumulation_steps"] == 3


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_only_stage_3_must_gather_its_weights_to_save_them(stage: int) -> None:
    zero = resolve({"zero_optimization": {"stage": stage}}, {}).ds_config["zero_optimization"]
    assert zero.get("stage3_gather_16bit_weights_on_model_save") is (True if stage == 3 else None)


GRID = list(
    itertools.product(
        [{}, {"train_micro_batch_size_per_gpu": 2}, {"train_micro_batch_size_per_gpu": "auto"}],
        [{}, {"gradient_accumulation_steps": 3, "gradient_clipping": 0.3}, {"train_batch_size": "auto"}],
        [{}, {"bf16": {"enabled": True}}, {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}],
        [
            {},
            {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.8, 0.9], "eps": "auto"}}},
            {
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}},
                "scheduler": {
                    "type": "WarmupDecayLR",
                    "params": {
                        "warmup_min_lr": "auto",
                        "warmup_max_lr": 1e-4,
                        "warmup_num_steps": 5,
                        "total_num_steps": "auto",
                    },
                },
            },
        ],
        [{}, {"warmup_steps": 5}, {"max_grad_norm": 0.3, "gradient_accumulation_steps": 3}],
    )
)


@pytest.fixture
def _forget_the_ds_config() -> Iterator[None]:
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    yield
    unset_hf_deepspeed_config()


@pytest.mark.torch
@pytest.mark.usefixtures("_forget_the_ds_config")
def test_what_is_resolved_is_what_transformers_finds_consistent(tmp_path: Any) -> None:
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    model = SimpleNamespace(config=SimpleNamespace(hidden_size=64))
    for *sections, training in GRID:
        ds_config = {key: value for section in sections for key, value in section.items()}
        resolved = resolve(copy.deepcopy(ds_config), training)
        args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **resolved.training)
        theirs = HfTrainerDeepSpeedConfig(resolved.ds_config)
        theirs.trainer_config_process(args)
        theirs.trainer_config_finalize(args, model, 100)  # raises if anything does not match
        assert theirs.mismatches == []
        assert "auto" not in repr(theirs.config)
        assert theirs.config["gradient_clipping"] == args.max_grad_norm
        assert theirs.config["train_micro_batch_size_per_gpu"] == args.per_device_train_batch_size
        assert theirs.config["gradient_accumulation_steps"] == args.gradient_accumulation_steps
        assert theirs.config.get("bf16", {}).get("enabled", False) is args.bf16
