from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.config import ZeroOptimization
from zerokit.config.conditions import Acts
from zerokit.findings import Remove
from zerokit.lint import check_config
from zerokit.lint.examples import llama_8b, mixture_of_experts


def test_every_key_of_stage_3_is_known_below_it() -> None:
    fields = ZeroOptimization.model_fields.items()
    of_stage_3 = {
        name
        for name, field in fields
        if any(isinstance(item, Acts) and item.stages == (3,) for item in field.metadata)
    }
    samples = {
        "leaf_module": {"names": ["mlp"]},
        "stage3_max_live_parameters": 1,
        "sub_group_size": 1,
        "zero_hpz_partition_size": 8,
        "zero_quantized_weights": True,
    }
    assert set(samples) <= of_stage_3
    expected = [(f"zero_optimization.{key}", "warning") for key in sorted(samples)]
    assert sorted(said("stage3-key", zero(2, **samples))) == expected
    assert said("stage3-key", zero(3, **samples)) == []


def test_nothing_is_said_of_a_stage_that_another_fills() -> None:
    config = zero("auto", stage3_max_live_parameters=1, round_robin_gradients=True, contiguous_gradients=True)
    rules = {finding.rule for finding in check_config(config).findings}
    assert not rules & {"stage3-key", "stage12-key", "stage0-keys", "round-robin-gradients"}


def test_a_mistyped_stage_is_not_taken_for_stage_0() -> None:
    config = {**MICRO, "zero_optimization": {"stge": 3, "offload_param": {"device": "cpu"}}}
    rules = {finding.rule for finding in check_config(config).findings}
    assert not rules & {"no-stage", "stage0-keys", "offload-without-zero"}


def test_an_absent_stage_is_one_finding() -> None:
    config = {**MICRO, "zero_optimization": {"cpu_offload": True, "reduce_bucket_size": 5e8}}
    (finding,) = found("no-stage", config)
    assert finding.path == ("zero_optimization",)
    assert "'cpu_offload' and 'reduce_bucket_size' do nothing" in finding.message
    assert found("stage0-keys", config) == []
    assert found("offload-without-zero", config) == []
    assert found("no-stage", {**MICRO, "zero_optimization": {"_comment": "off"}}) == []


def test_idle_keys_of_stage_0_are_listed_together() -> None:
    keys = {"reduce_scatter": True, "overlap_comm": True, "reduce_bucket_size": 1e9}
    (finding,) = found("stage0-keys", zero(0, **keys))
    assert all(f"'{key}'" in finding.message for key in keys)
    (finding,) = found("stage0-keys", zero(0, contiguous_gradients=True, sub_group_size=1, **keys))
    assert "and 1 more do nothing" in finding.message
    assert found("stage0-keys", zero(0)) == []


@pytest.mark.parametrize(
    ("config", "path", "severity"),
    [
        (zero(2, allgather_partitions=True), "zero_optimization.allgather_partitions", "info"),
        (zero(2, allgather_partitions=False), "zero_optimization.allgather_partitions", "warning"),
        ({**zero(2), "disable_allgather": True}, "disable_allgather", "warning"),
        ({**zero(2), "allgather_size": 1e8}, "allgather_size", "warning"),
        ({**zero(1), "pipeline": {"stages": 4}}, "pipeline.stages", "warning"),
    ],
)
def test_keys_that_nothing_reads(config: dict[str, Any], path: str, severity: str) -> None:
    (finding,) = found("dead-key", config)
    assert (".".join(map(str, finding.path)), finding.severity) == (path, severity)
    assert finding.fix == (Remove(finding.path),)


def test_the_oldest_form_of_the_section_reads_allgather_size_and_does_not_use_it() -> None:
    (finding,) = found("dead-key", {**MICRO, "zero_optimization": True, "allgather_size": 1e8})
    assert "PyTorch" in finding.message


def test_experts_that_deepspeed_knows_need_no_leaf_module() -> None:
    from dataclasses import replace

    model = mixture_of_experts()
    assert said("moe-leaf-module", zero(3), model=model) == [("zero_optimization", "info")]
    assert said("moe-leaf-module", zero(2), model=model) == []
    assert said("moe-leaf-module", zero(3), model=replace(model, model_type="qwen3_moe")) == []
    assert said("moe-leaf-module", zero(3), model=llama_8b()) == []
