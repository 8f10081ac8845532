"""Rules of learning-rate schedules: where they speak, and where not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.findings import SetValue

LINEAR = {"warmup_type": "linear"}


def scheduled(kind: str, **params: Any) -> dict[str, Any]:
    """A config with an optimizer whose rate is 1e-4, and a schedule."""
    return {
        **MICRO,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "scheduler": {"type": kind, "params": params},
    }


def one_cycle(**params: Any) -> dict[str, Any]:
    return scheduled("OneCycle", cycle_min_lr=1e-5, cycle_max_lr=1e-4, **params)


def with_optimizer(config: Mapping[str, Any], kind: str, **params: Any) -> dict[str, Any]:
    return {**config, "optimizer": {"type": kind, "params": params}}


def params(key: str) -> str:
    return f"scheduler.params.{key}"


PLATEAU = scheduled("ReduceLROnPlateau")
STEP = scheduled("StepLR", step_size=10)
DECAY = scheduled("WarmupDecayLR", total_num_steps=1000, **LINEAR)

SPEAKS: list[tuple[str, Mapping[str, Any], list[tuple[str, str]]]] = [
    ("torch-scheduler", {**STEP, **zero(1)}, [("scheduler.type", "error")]),
    ("torch-scheduler", {**STEP, "fp16": {"enabled": True}}, [("scheduler.type", "error")]),
    ("torch-scheduler", {**STEP, "bf16": {"enabled": True}}, [("scheduler.type", "error")]),
    ("torch-scheduler", {**STEP, "bf16": {"enabled": "auto"}}, []),
    ("torch-scheduler", STEP, []),
    ("torch-scheduler", {**STEP, **zero("auto")}, []),
    ("torch-scheduler", {**DECAY, **zero(3)}, []),
    ("plateau-schedule", PLATEAU, [("scheduler.type", "warning")]),
    ("plateau-schedule", {**PLATEAU, **zero(2)}, []),
    ("decay-default-rate", with_optimizer(DECAY, "AdamW", lr=1e-3), []),
    ("decay-default-rate", with_optimizer(DECAY, "AdamW", lr="auto"), [("scheduler.params", "warning")]),
    ("decay-default-rate", {**MICRO, "scheduler": DECAY["scheduler"]}, [("scheduler.params", "warning")]),
    ("decay-default-rate", scheduled("WarmupDecayLR", total_num_steps=10, warmup_max_lr=1e-5), []),
    ("decay-default-rate", scheduled("WarmupDecayLR", total_num_steps=10, warmup_max_rl=1e-5), []),
    ("decay-default-rate", scheduled("WarmupCosineLR", total_num_steps=10), []),
    ("overridden-rate", scheduled("WarmupLR", warmup_max_lr=1e-4), []),
    ("overridden-rate", scheduled("WarmupLR", warmup_max_lr="auto"), []),
    ("overridden-rate", scheduled("LRRangeTest", lr_range_test_min_lr=1e-6), []),
    ("overridden-rate", with_optimizer(one_cycle(), "AdamW", lr=1e-3), [("optimizer.params.lr", "warning")]),
    ("overridden-rate", with_optimizer(one_cycle(), "AdamW"), []),
    ("falling-warmup", scheduled("WarmupLR", warmup_min_lr=1.0), [(params("warmup_min_lr"), "warning")]),
    ("falling-warmup", scheduled("WarmupLR", warmup_min_lr=1e-4), []),
    (
        "falling-warmup",
        scheduled("OneCycle", cycle_min_lr=1e-3, cycle_max_lr=1e-4),
        [(params("cycle_min_lr"), "warning")],
    ),
    ("falling-warmup", one_cycle(cycle_max_mom=0.5), [(params("cycle_max_mom"), "warning")]),
    (
        "warmup-exceeds-total",
        scheduled("WarmupDecayLR", total_num_steps=100, warmup_num_steps=200),
        [(params("warmup_num_steps"), "warning")],
    ),
    ("warmup-exceeds-total", scheduled("WarmupDecayLR", total_num_steps=100, warmup_num_steps=100), []),
    ("warmup-exceeds-total", scheduled("WarmupDecayLR", total_num_steps="auto"), []),
    ("warmup-exceeds-total", scheduled("WarmupLR", warmup_num_steps=10**9), []),
    (
        "warmup-of-one",
        scheduled("WarmupCosineLR", total_num_steps=9, warmup_num_steps=1),
        [
            (params("warmup_num_steps"), "info"),
        ],
    ),
    ("warmup-of-one", scheduled("WarmupLR", warmup_num_steps=2), []),
    ("range-test-left-on", scheduled("LRRangeTest"), [("scheduler.type", "warning")]),
    ("schedule-start", scheduled("WarmupLR", last_batch_iteration=-1), []),
    ("one-cycle-betas", one_cycle(cycle_momentum=True), [(params("cycle_momentum"), "warning")]),
    ("one-cycle-betas", with_optimizer(one_cycle(), "SGD", lr=1e-4), []),
    ("one-cycle-betas", with_optimizer(one_cycle(), "Muon", muon_lr=1e-4), []),
    (
        "one-cycle-momentum",
        with_optimizer(one_cycle(cycle_max_mom=0.95), "SGD"),
        [
            (params("cycle_max_mom"), "warning"),
        ],
    ),
    ("one-cycle-momentum", with_optimizer(one_cycle(), "SGD"), []),
    ("one-cycle-momentum", one_cycle(cycle_momentum=True), []),
    ("one-cycle-decay", one_cycle(decay_mom_rate=0.1), [(params("decay_mom_rate"), "warning")]),
    ("one-cycle-decay", one_cycle(decay_lr_rate=0.1, decay_step_size=10), []),
]


@pytest.mark.parametrize(("rule", "config", "expected"), SPEAKS)
def test_where_a_rule_speaks(rule: str, config: Mapping[str, Any], expected: list[tuple[str, str]]) -> None:
    assert said(rule, config) == expected


@pytest.mark.parametrize(("rate", "peak"), [(2e-5, 2e-5), ("auto", "auto")])
def test_the_peak_that_is_added(rate: Any, peak: Any) -> None:
    (finding,) = found("decay-default-rate", with_optimizer(DECAY, "AdamW", lr=rate))
    assert finding.fix == (SetValue(("scheduler", "params", "warmup_max_lr"), peak),)


def test_a_peak_that_nobody_names_is_for_a_person_to_choose() -> None:
    (finding,) = found("decay-default-rate", {**MICRO, "scheduler": DECAY["scheduler"]})
    assert finding.fix == ()


def test_the_numbers_are_in_the_message() -> None:
    (finding,) = found("warmup-exceeds-total", scheduled("WarmupCosineLR", total_num_steps=300))
    assert finding.message == "'warmup_num_steps' 1000, its default, is more than 'total_num_steps' 300"
    assert finding.path == ("scheduler", "params", "total_num_steps")


@pytest.mark.parametrize(
    ("target", "severity"), [("trainer", "error"), ("accelerate", "warning"), (None, "warning")]
)
def test_two_rates_never_equal_one_argument(target: Any, severity: str) -> None:
    config = scheduled("WarmupLR", warmup_max_lr=6e-4)
    (finding,) = found("overridden-rate", config, target=target)
    assert (finding.path, finding.severity) == (("optimizer", "params", "lr"), severity)
    assert ("learning_rate" in finding.message) is (severity == "error")
    same = scheduled("WarmupLR", warmup_max_lr=1e-4)
    assert found("overridden-rate", same, target=target) == []
