from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.config.strategies import configs
from tests.examples import examples
from zerokit.config import load_ds_config
from zerokit.documents import dotted
from zerokit.resolving.diff import Difference, differences


def compare(left: dict[str, Any], right: dict[str, Any], **options: Any) -> tuple[Difference, ...]:
    return differences(load_ds_config(left), load_ds_config(right), **options)


def acting(found: tuple[Difference, ...]) -> dict[str, tuple[Any, Any]]:
    return {dotted(one.path): (one.left.value, one.right.value) for one in found if one.without_effect is None}


def zero(stage: int = 3, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **keys}}


EQUAL = [
    ({}, {}),
    ({"_comment": "a"}, {"//": "b"}),
    ({"gradient_clipping": 1.0}, {}),
    ({"gradient_clipping": 1}, {"gradient_clipping": 1.0}),
    ({"bf16": {"enabled": False}}, {}),
    ({"bfloat16": {"enabled": True}}, {"bf16": {"enabled": True}}),
    (zero(reduce_bucket_size=5e8), zero()),
    (zero(reduce_bucket_size=2e8), zero(reduce_bucket_size=200000000)),
    (zero(prefetch_bucket_size=7), zero(stage3_prefetch_bucket_size=7)),
    (zero(cpu_offload=True), zero(offload_optimizer={"device": "cpu"})),
    (zero(cpu_offload_param=True), zero(offload_param={"device": "cpu"})),
    (zero(offload_optimizer={"device": "none", "pin_memory": False}), zero()),
    (zero(stage3_gather_fp16_weights_on_model_save=True), zero(stage3_gather_16bit_weights_on_model_save=True)),
    ({"zero_optimization": True}, zero(1)),
    (zero(3, overlap_comm=True), zero(3)),
    (zero(2, overlap_comm=False), zero(2)),
    ({"optimizer": {"type": "adamw", "params": {"lr": 1}}}, {"optimizer": {"params": {"lr": 1.0}, "type": "AdamW"}}),
    ({"optimizer": {"type": "Adam"}}, {"optimizer": {"type": "AdamW"}}),
    ({"data_types": {"grad_accum_dtype": "float32"}}, {"data_types": {"grad_accum_dtype": "fp32"}}),
    ({"train_micro_batch_size_per_gpu": 2}, {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}),
]


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_ways_of_writing_the_same_do_not_differ(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert compare(left, right) == ()
    assert compare(right, left) == ()


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ({"gradient_clipping": 0.5}, {}, {"gradient_clipping": (0.5, 1.0)}),
        (zero(1), zero(2), {"zero_optimization.stage": (1, 2)}),
        (zero(2), zero(3), {"zero_optimization.stage": (2, 3), "zero_optimization.overlap_comm": (False, True)}),
        (
            {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}},
            {"optimizer": {"type": "AdamW"}},
            {"optimizer.type": ("Adam", "AdamW")},
        ),
        (zero(reduce_bucket_size="auto"), zero(), {"zero_optimization.reduce_bucket_size": ("auto", 500000000)}),
        ({"train_batch_size": 8}, {"train_batch_size": "auto"}, {"train_batch_size": (8, "auto")}),
    ],
)
def test_what_differs_is_named_with_both_values(
    left: dict[str, Any], right: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = acting(compare(left, right))
    assert expected.items() <= found.items()
    assert {path: (b, a) for path, (a, b) in found.items()} == acting(compare(right, left))


def test_a_section_that_one_side_lacks() -> None:
    found = compare(zero(offload_param={"device": "cpu"}), zero())
    one = next(one for one in found if dotted(one.path) == "zero_optimization.offload_param.device")
    assert (one.left.value, one.left.given) == ("cpu", "set")
    assert (one.right.value, one.right.given) == (None, "absent")


def test_what_acts_on_neither_side_is_no_difference() -> None:
    found = compare(zero(2, sub_group_size=5, offload_param={"device": "cpu"}), zero(2))
    assert acting(found) == {}
    assert {dotted(one.path) for one in found} >= {"zero_optimization.sub_group_size"}
    assert all("the stage is 2" in str(one.without_effect) for one in found)
    assert acting(compare(zero(3, sub_group_size=5), zero(3)))


def test_batch_sizes_are_compared_by_what_they_lead_to() -> None:
    by_total = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2}
    by_steps = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    assert acting(compare(by_total, by_steps))
    assert compare(by_total, by_steps, num_gpus=4) == ()
    assert acting(compare(by_total, by_steps, num_gpus=8)) == {
        "train_batch_size": (32, 64),
        "gradient_accumulation_steps": (2, 4),
    }


@given(configs(), st.randoms(use_true_random=False))
@examples(60, suppress_health_check=list(HealthCheck))
def test_a_config_is_equal_to_itself_in_any_order_and_with_its_defaults(config: dict[str, Any], random: Any) -> None:
    keys = list(config)
    random.shuffle(keys)
    assert compare(config, {key: config[key] for key in keys}) == ()
    try:
        everything = load_ds_config(load_ds_config(config).dump(all=True))
    except Exception:  # some defaults are refused beside others, such as both of a deprecated pair
        return
    assert acting(differences(load_ds_config(config), everything)) == {}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (zero(2, offload_optimizer={"device": "cpu"}), {"zero_optimization.offload_optimizer.device"}),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 0.1}}}, {"optimizer.type", "optimizer.params.lr"}),
        ({"optimizer": {"type": "AdamW"}}, {"optimizer.type"}),
        ({"activation_checkpointing": {"profile": True}}, {"activation_checkpointing.profile"}),
    ],
)
def test_a_section_that_one_config_has_is_told_by_the_keys_that_it_sets(keys: dict[str, Any], named: set[str]) -> None:
    for left, right in ((zero(2), zero(2) | keys), (zero(2) | keys, zero(2))):
        assert set(acting(compare(left, right))) == named


def test_a_section_without_keys_is_told_by_its_defaults() -> None:
    found = acting(compare(zero(2), zero(2, zenflow={})))
    assert "zero_optimization.zenflow.topk_ratio" in found
