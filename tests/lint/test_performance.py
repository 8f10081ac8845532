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

SPEAKS: list[tuple[str, Mapping[str, Any], list[tuple[str, str]]]] = [
    (
        "no-prefetch",
        zero(3, **{PREFETCH: 0, LIVE: 0}),
        [(f"{ZERO}.{PREFETCH}", "warning"), (f"{ZERO}.{LIVE}", "warning")],
    ),
    ("no-prefetch", zero(3, prefetch_bucket_size=0), [(f"{ZERO}.prefetch_bucket_size", "warning")]),
    ("no-prefetch", zero(3, **{PREFETCH: "auto"}), []),
    ("no-prefetch", zero(2, **{LIVE: 0}), []),
    ("sequential-gather", zero(3, stage3_allgather_sequential=False), []),
    ("sequential-gather", zero(2, stage3_allgather_sequential=True), []),
    ("small-sub-groups", zero(3, sub_group_size=0), [(f"{ZERO}.sub_group_size", "warning")]),
    ("small-sub-groups", zero(3, sub_group_size=1e14), []),
    (
        "no-persistence",
        zero(3, stage3_param_persistence_threshold=0),
        [(f"{ZERO}.stage3_param_persistence_threshold", "info")],
    ),
    ("no-persistence", zero(3, stage3_param_persistence_threshold="auto"), []),
    ("overlap-off", zero(3, overlap_comm=False), [(f"{ZERO}.overlap_comm", "info")]),
    ("overlap-off", zero(2, overlap_comm=False), []),
    ("scattered-gradients", zero(1, contiguous_gradients=False), [(f"{ZERO}.contiguous_gradients", "info")]),
    ("scattered-gradients", zero(1, contiguous_gradients=False, **CPU), []),
    (
        "reduction-per-micro-batch",
        {**zero(2), "gradient_accumulation_steps": 8},
        [("gradient_accumulation_steps", "info")],
    ),
    ("reduction-per-micro-batch", {**zero(2), "gradient_accumulation_steps": 4}, []),
    ("reduction-per-micro-batch", {**zero(2), "gradient_accumulation_steps": "auto"}, []),
    ("reduction-per-micro-batch", {**zero(2, **CPU), "gradient_accumulation_steps": 8}, []),
    ("reduction-per-micro-batch", {**zero(3), "gradient_accumulation_steps": 8}, []),
    ("slow-nvme-access", {**zero(3, **NVME), "aio": {"queue_depth": 2}}, [("aio.queue_depth", "warning")]),
    ("slow-nvme-access", {**zero(3, **NVME), "aio": {"queue_depth": 8}}, []),
    ("slow-nvme-access", {**zero(3), "aio": {"queue_depth": 2}}, []),
    ("autotuning-left-on", {**zero(2), "autotuning": {"enabled": False}}, []),
    ("wall-clock-breakdown", {**MICRO, "wall_clock_breakdown": False}, []),
    ("flops-profiler", {**MICRO, "flops_profiler": {"profile_step": 3}}, []),
    ("memory-breakdown", {**MICRO, "memory_breakdown": True}, [("memory_breakdown", "warning")]),
    (
        "comms-logger",
        {**MICRO, "comms_logger": {"enabled": True, "prof_all": False}},
        [("comms_logger.enabled", "warning")],
    ),
    ("comms-logger", {**MICRO, "comms_logger": {"verbose": True}}, []),
    ("sanity-checks", zero(2, enable_sanity_checks=True), []),
    (
        "checkpoint-profiling",
        {**MICRO, "activation_checkpointing": {"profile": True}},
        [("activation_checkpointing.profile", "warning")],
    ),
    ("hybrid-engine-left-on", {**MICRO, "hybrid_engine": {"enabled": True}}, []),
    (
        "debug-output",
        {**MICRO, "log_level": "debug", "dump_state": True},
        [("dump_state", "info"), ("log_level", "info")],
    ),
    ("debug-output", {**MICRO, "steps_per_print": 1}, []),
    ("one-gpu", zero(3), []),
]


@pytest.mark.parametrize(("rule", "config", "expected"), SPEAKS)
def test_where_a_rule_speaks(rule: str, config: Mapping[str, Any], expected: list[tuple[str, str]]) -> None:
    assert sorted(said(rule, config)) == sorted(expected)


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
