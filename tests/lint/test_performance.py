"""Rules of settings that are legal and ruinous: where they speak, and where not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.lint.asking import MICRO, found, said, zero
from zerokit.releases.versions import Version

ZERO = "zero_optimization"
NVME = {"offload_param": {"device": "nvme", "nvme_path": "/local_nvme"}}
CPU = {"offload_optimizer": {"device": "cpu"}}
LIVE, PREFETCH = "stage3_max_live_parameters", "stage3_prefetch_bucket_size"


@pytest.mark.parametrize(
    ("config", "severity"),
    [
        (zero(3), "warning"),
        (zero(3, **CPU), "info"),
        (zero(2), "info"),
        (zero(2, **CPU), None),
        (zero(3, **NVME), None),
        (zero(0), None),
        (zero(3, offload_parm={"device": "cpu"}), None),
    ],
)
def test_zero_on_one_gpu(config: Mapping[str, Any], severity: str | None) -> None:
    expected = [] if severity is None else [(f"{ZERO}.stage", severity)]
    assert said("one-gpu", config, num_gpus=1) == expected
    assert said("one-gpu", config, num_gpus=2) == []


def test_quantised_weights_between_nodes() -> None:
    config, path = zero(3, zero_quantized_weights=True), f"{ZERO}.zero_quantized_weights"
    assert said("quantized-weights-node", config, num_gpus=8) == [(path, "info")]
    assert said("quantized-weights-node", config, num_gpus=8, gpus_per_node=4) == []


def test_what_depends_on_who_hands_the_config_over() -> None:
    every_step = {**MICRO, "steps_per_print": 1}
    assert said("debug-output", every_step, target="deepspeed") == [("steps_per_print", "info")]
    assert said("debug-output", every_step, target="trainer") == []
    hybrid = {**MICRO, "hybrid_engine": {"enabled": True}}
    assert said("hybrid-engine-left-on", hybrid, target="deepspeed") == []


def test_overlap_may_be_off_against_an_old_defect() -> None:
    config = zero(3, overlap_comm=False)
    assert said("overlap-off", config, deepspeed_version=Version(0, 18, 7)) == []
    assert said("overlap-off", config, deepspeed_version=Version(0, 18, 8)) == [
        (f"{ZERO}.overlap_comm", "info")
    ]


def test_what_becomes_of_the_prefetch_is_said() -> None:
    config = zero(3, stage3_allgather_sequential=True, stage3_prefetch_bucket_size=5e7)
    (finding,) = found("sequential-gather", config)
    assert finding.message.endswith("and 'stage3_prefetch_bucket_size' 50M becomes 1")


@pytest.mark.torch
def test_the_profiler_switches_the_timers_on() -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    profiled = {**zero(0), "flops_profiler": {"enabled": True, "profile_step": 7}}
    assert config.DeepSpeedConfig(profiled).wall_clock_breakdown is True
    (finding,) = found("flops-profiler", profiled)
    assert "step 7" in finding.message
    (finding,) = found("flops-profiler", {**zero(0), "flops_profiler": {"enabled": True, "profile_step": -1}})
    assert "is of one step, but" in finding.message


@pytest.mark.torch
def test_stage_3_overlaps_by_default() -> None:
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    assert config.DeepSpeedZeroConfig(stage=3).overlap_comm is True
    assert config.DeepSpeedZeroConfig(stage=2).overlap_comm is False
