"""Rules of learning-rate schedules: where they speak, and where not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.lint.asking import MICRO, found
from zerokit.findings import SetValue

LINEAR = {"warmup_type": "linear"}


def scheduled(kind: str, **params: Any) -> dict[str, Any]:
    """A config with an optimizer whose rate is 1e-4, and a schedule."""
    return {
        **MICRO,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "scheduler": {"type": kind, "params": params},
    }


def with_optimizer(config: Mapping[str, Any], kind: str, **params: Any) -> dict[str, Any]:
    return {**config, "optimizer": {"type": kind, "params": params}}


def params(key: str) -> str:
    return f"scheduler.params.{key}"


DECAY = scheduled("WarmupDecayLR", total_num_steps=1000, **LINEAR)


@pytest.mark.parametrize(("rate", "peak"), [(2e-5, 2e-5), ("auto", "auto")])
def test_the_peak_that_is_added(rate: Any, peak: Any) -> None:
    (finding,) = found("decay-default-rate", with_optimizer(DECAY, "AdamW", lr=rate))
    assert finding.fix == (SetValue(("scheduler", "params", "warmup_max_lr"), peak),)


def test_a_person_chooses_a_peak_that_is_absent() -> None:
    (finding,) = found("decay-default-rate", {**MICRO, "scheduler": DECAY["scheduler"]})
    assert finding.fix == ()


def test_the_numbers_are_in_the_message() -> None:
    (finding,) = found("warmup-exceeds-total", scheduled("WarmupCosineLR", total_num_steps=300))
    assert finding.message == "'warmup_num_steps' 1000, its default, is more than 'total_num_steps' 300"
    assert finding.path == ("scheduler", "params", "total_num_steps")


@pytest.mark.parametrize(("target", "severity"), [("trainer", "error"), ("accelerate", "warning"), (None, "warning")])
def test_two_rates_never_equal_one_argument(target: Any, severity: str) -> None:
    config = scheduled("WarmupLR", warmup_max_lr=6e-4)
    (finding,) = found("overridden-rate", config, target=target)
    assert (finding.path, finding.severity) == (("optimizer", "params", "lr"), severity)
    assert ("learning_rate" in finding.message) is (severity == "error")
    same = scheduled("WarmupLR", warmup_max_lr=1e-4)
    assert found("overridden-rate", same, target=target) == []


@pytest.mark.parametrize("key", ["warmup_min_ratio", "cos_min_ratio"])
@pytest.mark.parametrize(("ratio", "count"), [(0.5, 0), (1, 0), (1.5, 1)])
def test_a_share_of_the_optimizers_rate_is_at_most_1(key: str, ratio: float, count: int) -> None:
    config = scheduled("WarmupCosineLR", total_num_steps=100, warmup_num_steps=10, **{key: ratio})
    assert [".".join(map(str, one.path)) for one in found("falling-warmup", config)] == [params(key)] * count
