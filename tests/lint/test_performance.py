"""Rules of settings that are legal and ruinous: where they speak, and where not."""

from __future__ import annotations

import pytest

from tests.lint.asking import found, zero

LIVE, PREFETCH = "stage3_max_live_parameters", "stage3_prefetch_bucket_size"


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
