"""Changes of a run that may make its steps faster, at the price of memory that it may have to spare."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zerokit.rehearsal.parent.trials import DEFAULT_BUCKET, Candidate, integer, offloads, zero_section
from zerokit.rehearsal.report.report import RehearsalReport

_EXPOSED = 0.02
"""Of a step, from which on it is tried to hide communication."""
_RECOMPUTED = 1.05
"""From which on something is computed again in the backward pass."""
_LARGE_PREFETCH = 500_000_000
_DEFAULT_PREFETCH = 50_000_000
"""stage3_prefetch_bucket_size where the config has none (DeepSpeed zero/config.py, DeepSpeedZeroConfig)."""


def faster(report: RehearsalReport) -> Iterator[Candidate]:
    """What may shorten a step; `report` has its time."""
    assert report.time is not None
    zero = zero_section(report)
    stage = integer(zero.get("stage"), 0)
    yield Candidate(
        change="twice the micro-batch",
        how="twice train_micro_batch_size_per_gpu, half gradient_accumulation_steps if there are any",
        micro_batch_multiplier=2,
    )
    if report.recomputed > _RECOMPUTED:
        yield Candidate(
            change="no gradient checkpointing",
            how="gradient_checkpointing=False of the Trainer, or model.gradient_checkpointing_disable()",
            gradient_checkpointing=False,
        )
    yield from _partition_less(report, stage)
    yield from _offload_less(zero)
    if report.time.breakdown.communication > _EXPOSED * report.time.step_seconds:
        yield from _hide_communication(zero, stage)


def _partition_less(report: RehearsalReport, stage: int) -> Iterator[Candidate]:
    if report.world_size == 1 or stage < 2:
        return
    lower = stage - 1
    how = f'"zero_optimization": {{"stage": {lower}}}'
    if offloads(zero_section(report), "offload_param"):
        how += ' without "offload_param"'  # which is of stage 3 alone
    yield Candidate(
        change=f"ZeRO stage {lower}",
        how=how,
        ds_config={"zero_optimization.stage": lower, "zero_optimization.offload_param": None},
    )


def _offload_less(zero: dict[str, Any]) -> Iterator[Candidate]:
    for key, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        if offloads(zero, key):
            yield Candidate(
                change=f"{what} on the GPU",
                how=f'"zero_optimization" without "{key}"',
                ds_config={f"zero_optimization.{key}": None},
            )


def _hide_communication(zero: dict[str, Any], stage: int) -> Iterator[Candidate]:
    # Stage 3 overlaps unless told otherwise (DeepSpeed zero/config.py, overlap_comm_valid).
    if stage > 0 and not zero.get("overlap_comm", stage == 3):
        yield Candidate(
            change="overlap of communication",
            how='"zero_optimization": {"overlap_comm": true}',
            ds_config={"zero_optimization.overlap_comm": True},
        )
    if stage > 0 and integer(zero.get("reduce_bucket_size"), DEFAULT_BUCKET) < DEFAULT_BUCKET:
        yield Candidate(
            change="larger reduce buckets",
            how=f'"zero_optimization": {{"reduce_bucket_size": {DEFAULT_BUCKET}}}',
            ds_config={"zero_optimization.reduce_bucket_size": DEFAULT_BUCKET},
        )
    if stage == 3 and integer(zero.get("stage3_prefetch_bucket_size"), _DEFAULT_PREFETCH) < _LARGE_PREFETCH:
        yield Candidate(
            change="more prefetching",
            how=f'"zero_optimization": {{"stage3_prefetch_bucket_size": {_LARGE_PREFETCH}}}',
            ds_config={"zero_optimization.stage3_prefetch_bucket_size": _LARGE_PREFETCH},
        )
