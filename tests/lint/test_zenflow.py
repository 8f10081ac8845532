from typing import Any

import pytest

from tests.lint.asking import found, said, zero
from zerokit.choices import Target
from zerokit.recipe import Recipe
from zerokit.releases.versions import parse_version

CPU = {"offload_optimizer": {"device": "cpu"}}
STEP = {"select_strategy": "step", "select_interval": 8, "update_interval": 4}
SECTION = "zero_optimization.zenflow"


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (zero(0, zenflow=STEP, **CPU), 1),
        (zero(2, zenflow=STEP), 1),
        (zero(2, zenflow=STEP, offload_optimizer={"device": "none"}), 1),
        (zero(2, zenflow=STEP, offload_optimizer={"device": "auto"}), 0),
        (zero(1, zenflow=STEP, **CPU), 0),
        (zero(2, zenflow=STEP, cpu_offload=True), 0),
        (zero("auto", zenflow=STEP), 0),
        (zero(2, **CPU), 0),
    ],
)
def test_zenflow_needs_the_optimizer_on_the_cpu(config: dict[str, Any], count: int) -> None:
    assert said("zenflow-offload", config) == [(SECTION, "error")] * count


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"select_interval": 4}, "select_interval"),
        ({"select_strategy": "epoch"}, "select_strategy"),
        ({"select_strategy": "step"}, "select_strategy"),
        ({"select_strategy": "step", "select_interval": 3, "update_interval": 4}, "select_interval"),
        ({"select_strategy": "epoch", "select_interval": 3, "update_interval": 4}, None),
        ({"select_strategy": "step", "select_interval": 4, "update_interval": 4}, None),
        ({}, None),
    ],
)
def test_intervals(section: dict[str, Any], key: str | None) -> None:
    expected = [] if key is None else [(f"{SECTION}.{key}", "error")]
    assert said("zenflow-interval", zero(2, zenflow=section, **CPU)) == expected


@pytest.mark.parametrize(
    ("target", "severity"),
    [("deepspeed", "error"), ("accelerate", "error"), (None, "warning"), ("trainer", None)],
)
def test_who_divides_the_loss_by_zero(target: Target | None, severity: str | None) -> None:
    config = zero(2, zenflow={}, **CPU)
    expected = [] if severity is None else [(SECTION, severity)]
    assert said("zenflow-auto-update", config, target=target) == expected
    assert said("zenflow-auto-update", zero(2, zenflow=STEP, **CPU), target=target) == []


@pytest.mark.parametrize(("steps", "count"), [(8, 1), (4, 0), (1, 0), ("auto", 0), (None, 0)])
def test_accumulation_steps_are_replaced(steps: Any, count: int) -> None:
    config = {**zero(2, zenflow=STEP, **CPU), "gradient_accumulation_steps": steps}
    assert len(found("zenflow-accumulation", config)) == count


@pytest.mark.parametrize(
    ("stage", "overlap", "count"), [(2, None, 1), (2, True, 0), (3, None, 0), (3, False, 1), (1, False, 1)]
)
def test_zenflows_own_offload_needs_overlap(stage: int, overlap: bool | None, count: int) -> None:
    keys = {} if overlap is None else {"overlap_comm": overlap}
    config = zero(stage, zenflow={**STEP, "offload": True}, **keys, **CPU)
    assert len(found("zenflow-overlap", config)) == count
    assert found("zenflow-overlap", zero(stage, zenflow=STEP, **keys, **CPU)) == []


@pytest.mark.parametrize(("type", "count"), [("AdamW", 0), ("adam", 0), ("SGD", 1), ("Adagrad", 1)])
def test_zenflow_works_with_adam(type: str, count: int) -> None:
    optimizer = {"optimizer": {"type": type, "params": {"lr": 1e-3}}}
    assert len(found("zenflow-optimizer", {**zero(2, zenflow=STEP, **CPU), **optimizer})) == count
    assert found("zenflow-optimizer", {**zero(2, **CPU), **optimizer}) == []


def test_zenflow_makes_its_optimizer_of_the_section() -> None:
    assert len(found("zenflow-optimizer", zero(2, zenflow=STEP, **CPU))) == 1
    assert found("zenflow-optimizer", zero(0, zenflow=STEP, **CPU)) == []
    assert found("zenflow-optimizer", {**zero(2, zenflow=STEP, **CPU), "optimzer": {"type": "AdamW"}}) == []


@pytest.mark.parametrize(
    ("target", "severity"), [("deepspeed", None), ("accelerate", None), (None, None), ("trainer", "warning")]
)
def test_a_script_may_hand_stage_3_an_optimizer_for_zenflow(
    target: Target | None, severity: str | None
) -> None:
    expected = [] if severity is None else [(SECTION, severity)]
    assert said("zenflow-optimizer", zero(3, zenflow=STEP, **CPU), target=target) == expected
    assert said("zenflow-optimizer", zero(1, zenflow=STEP, **CPU), target=target) == [(SECTION, "error")]


def test_a_recipe_has_the_trainer_make_the_optimizer() -> None:
    recipe = Recipe.model_validate({"model": "org/name", "data": {"train": "x.jsonl"}})
    config = zero(3, zenflow=STEP, **CPU)
    assert said("zenflow-optimizer", config, recipe=recipe) == [(SECTION, "error")]


def test_steps_per_epoch_is_deepspeeds_to_write() -> None:
    config = zero(2, zenflow={**STEP, "steps_per_epoch": 10}, **CPU)
    assert said("zenflow-steps-per-epoch", config) == [(f"{SECTION}.steps_per_epoch", "warning")]
    config = zero(2, zenflow={"update_interval": 4, "steps_per_epoch": 10}, **CPU)
    assert said("zenflow-steps-per-epoch", config) == []


@pytest.mark.parametrize(
    ("stage", "release", "count"), [(1, None, 1), (2, "0.19.7", 1), (2, "0.19.6", 0), (3, None, 0)]
)
def test_releases_that_scramble_weights_are_known(stage: int, release: str | None, count: int) -> None:
    version = None if release is None else parse_version(release)
    config = zero(stage, zenflow=STEP, **CPU)
    assert len(said("zenflow-weights", config, deepspeed_version=version)) == count
