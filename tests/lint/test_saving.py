from typing import Any

import pytest

from tests.lint.asking import found, said, zero
from zerokit.findings import SetValue
from zerokit.lint.examples import recipe

GATHER = "stage3_gather_16bit_weights_on_model_save"
PATH = f"zero_optimization.{GATHER}"


@pytest.mark.parametrize(
    ("target", "severity"),
    [("trainer", "warning"), ("accelerate", "warning"), ("deepspeed", "info"), (None, "info")],
)
def test_a_model_in_pieces_is_not_saved_whole(target: Any, severity: str) -> None:
    assert said("unsaved-weights", zero(3), target=target) == [("zero_optimization", severity)]
    (finding,) = found("unsaved-weights", zero(3, **{GATHER: False}), target=target)
    assert ".".join(map(str, finding.path)) == PATH
    assert finding.fix == ()  # what a person wrote stays
    old = "stage3_gather_fp16_weights_on_model_save"
    (finding,) = found("unsaved-weights", zero(3, **{old: False}), target=target)
    assert (finding.path[-1], finding.fix) == (old, ())
    assert finding.message.startswith(f"'{old}' is false")
    assert finding.hint == f"Write '{GATHER}' in its place, with true"  # both together are refused
    (absent,) = found("unsaved-weights", zero(3), target=target)
    added = (SetValue(("zero_optimization", GATHER), True),)
    assert absent.fix == (added if target in ("trainer", "accelerate") else ())
    for config in (
        zero(2),
        zero(3, **{GATHER: True}),
        zero(3, **{GATHER: "auto"}),
        zero(3, gather_16bit_weights_on_model_save=True),
        zero(3, stage3_gather_fp16_weights_on_model_save=True),
        zero(3, stage3_gather_16bit_weights_on_save=True),
    ):
        assert said("unsaved-weights", config, target=target) == []


def test_adapters_are_saved_without_gathering() -> None:
    lora = recipe(peft={"type": "lora"})
    assert said("unsaved-weights", zero(3), target="trainer", recipe=lora) == []
    assert said("unsaved-weights", zero(3), target="trainer", recipe=recipe())
    assert said("unsaved-weights", zero(3), target="accelerate", recipe=lora)


@pytest.mark.parametrize(("target", "count"), [("trainer", 1), ("accelerate", 1), ("deepspeed", 0)])
def test_a_model_divided_by_tensor_parallelism_is_gathered_too(target: Any, count: int) -> None:
    config = {**zero(1), "tensor_parallel": {"autotp_size": 2}}
    assert len(found("unsaved-weights", config, target=target)) == count


def test_options_of_checkpoints() -> None:
    config = {**zero(1), "checkpoint": {"load_universal": True, "parallel_write": {"pipeline_stage": True}}}
    assert said("universal-left-on", config) == [("checkpoint.load_universal", "warning")]
    assert said("parallel-write", config) == []
    path = "checkpoint.parallel_write.pipeline_stage"
    assert said("parallel-write", config, target="trainer") == [(path, "warning")]
    off = {**zero(1), "checkpoint": {"load_universal": False, "parallel_write": {"pipeline_stage": False}}}
    assert said("universal-left-on", off) == []
    assert said("parallel-write", off, target="trainer") == []


@pytest.mark.parametrize(("stage", "value", "count"), [(2, False, 1), (2, True, 0), (0, False, 0)])
def test_master_weights_from_the_16_bit_copy(stage: int, value: bool, count: int) -> None:
    assert len(found("masters-from-16bit", zero(stage, load_from_fp32_weights=value))) == count
