"""Changes of a run that may lower its peak, by what is alive there and what its config does not use yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerokit.rehearsal.parent.job import Overrides, RehearsalJob
from zerokit.rehearsal.report.report import RehearsalReport

_CHECKPOINTED = 1.2
"""Of ``recomputed``, from which on the layers have checkpoints: all of them make it 4/3 or more."""
_SMALL_BUCKET = 50_000_000
DEFAULT_BUCKET = 500_000_000
"""reduce_bucket_size where the config has none (DeepSpeed zero/config.py, DeepSpeedZeroConfig)."""


@dataclass(frozen=True)
class Candidate:
    """A change that may help."""

    change: str
    how: str
    ds_config: dict[str, Any] = field(default_factory=dict)
    """Values by dotted key."""
    gradient_checkpointing: bool | None = None
    """None: as the script has it."""
    micro_batch_divisor: int = 1
    micro_batch_multiplier: int = 1
    num_gpus_factor: int = 1
    refusal: str = ""
    """Words of the error by which the run refuses this."""
    otherwise: Candidate | None = None
    """What is tried where it does; not after another error, which says nothing against this."""

    @property
    def changes_micro_batch(self) -> bool:
        """Whether the batches are to be of another size."""
        return (self.micro_batch_divisor, self.micro_batch_multiplier) != (1, 1)

    @property
    def resizes_step(self) -> bool:
        """Whether a step may have more or fewer examples with it."""
        return (self.micro_batch_divisor, self.micro_batch_multiplier, self.num_gpus_factor) != (1, 1, 1)

    def applied_to(self, job: RehearsalJob, folder: Path, number: int) -> RehearsalJob:
        """The job of rehearsing this change, which leaves nothing but its report.

        Args:
            job: of the run as it is.
            folder: in which the change gets one of its own.
            number: of the change.
        """
        num_gpus = job.num_gpus * self.num_gpus_factor
        # Twice six of the eight GPUs of a node are two nodes of six.
        nodes_of = job.gpus_per_node if num_gpus <= job.gpus_per_node else job.cluster.local_ranks
        own = folder / f"change-{number}"
        own.mkdir()
        overrides: Overrides = {**job.overrides}
        if self.ds_config:
            overrides["ds_config"] = {**overrides.get("ds_config", {}), **self.ds_config}
        if self.gradient_checkpointing is not None:
            overrides["gradient_checkpointing"] = self.gradient_checkpointing
        if self.micro_batch_divisor > 1:
            overrides["micro_batch_divisor"] = (
                overrides.get("micro_batch_divisor", 1) * self.micro_batch_divisor
            )
        if self.micro_batch_multiplier > 1:
            overrides["micro_batch_multiplier"] = (
                overrides.get("micro_batch_multiplier", 1) * self.micro_batch_multiplier
            )
        return replace(
            job,
            num_gpus=num_gpus,
            gpus_per_node=nodes_of,
            overrides=overrides,
            exchange_folder=str(own / "exchange") if job.exchange_folder else None,
            recording_file=str(own / "rank-0.npz"),
        )


def smaller(report: RehearsalReport) -> Iterator[Candidate]:
    """What may lower the peak."""
    zero = zero_section(report)
    stage = integer(zero.get("stage"), 0)
    yield from _partition_more(report, stage)
    yield from _offload(report, zero, stage)
    yield from _shrink_activations(report)
    yield from _shrink_buffers(report, zero, stage)
    if stage > 0:
        doubled = report.world_size * 2
        yield Candidate(
            change="twice the GPUs", how=f"{doubled} GPUs, same micro-batch size", num_gpus_factor=2
        )


def _partition_more(report: RehearsalReport, stage: int) -> Iterator[Candidate]:
    if report.world_size == 1:
        return
    for higher in sorted({stage + 1, 3}):
        if stage < higher <= 3:
            yield Candidate(
                change=f"ZeRO stage {higher}",
                how=f'"zero_optimization": {{"stage": {higher}}}',
                ds_config={"zero_optimization.stage": higher},
            )


def _offload(report: RehearsalReport, zero: dict[str, Any], stage: int) -> Iterator[Candidate]:
    if stage >= 1 and not offloads(zero, "offload_optimizer"):
        how = '"zero_optimization": {"offload_optimizer": {"device": "cpu"}}'
        offload = {"zero_optimization.offload_optimizer.device": "cpu"}
        yield Candidate(
            change="optimizer on the host",
            how=how,
            ds_config=offload,
            # DeepSpeed refuses an optimizer that the script makes itself (_configure_optimizer in
            # deepspeed/runtime/engine.py); with the second key it runs on the host as it is.
            refusal="ZeRO-Offload with a client provided optimizer",
            otherwise=Candidate(
                change="optimizer on the host, as the script makes it",
                how=f'{how}, "zero_force_ds_cpu_optimizer": false',
                ds_config={**offload, "zero_force_ds_cpu_optimizer": False},
            ),
        )
    if stage == 3 and not offloads(zero, "offload_param") and _share(report, "parameters") > 0.02:
        yield Candidate(
            change="parameters on the host",
            how='"zero_optimization": {"offload_param": {"device": "cpu"}}',
            ds_config={"zero_optimization.offload_param.device": "cpu"},
        )


def _shrink_activations(report: RehearsalReport) -> Iterator[Candidate]:
    if report.recomputed < _CHECKPOINTED and _share(report, "activations", "other") > 0.1:
        yield Candidate(
            change="gradient checkpointing",
            how="model.gradient_checkpointing_enable(), or gradient_checkpointing=True of the Trainer",
            gradient_checkpointing=True,
        )
    micro_batch_size = (report.run.ds_config or {}).get("train_micro_batch_size_per_gpu")
    if micro_batch_size != 1 and _share(report, "activations", "other") > 0.05:
        yield Candidate(
            change="half the micro-batch",
            how="half train_micro_batch_size_per_gpu, twice gradient_accumulation_steps",
            micro_batch_divisor=2,
        )


def _shrink_buffers(report: RehearsalReport, zero: dict[str, Any], stage: int) -> Iterator[Candidate]:
    if stage == 0 or _share(report, "buffers", "gradients", "other") <= 0.05:
        return
    if integer(zero.get("reduce_bucket_size"), DEFAULT_BUCKET) > _SMALL_BUCKET:
        yield Candidate(
            change="smaller reduce buckets",
            how=f'"zero_optimization": {{"reduce_bucket_size": {_SMALL_BUCKET}}}',
            ds_config={"zero_optimization.reduce_bucket_size": _SMALL_BUCKET},
        )
    # Stage 3 overlaps unless told otherwise (DeepSpeed zero/config.py, overlap_comm_valid).
    if zero.get("overlap_comm", stage == 3) not in (False, None):
        yield Candidate(
            change="no overlap of communication",
            how='"zero_optimization": {"overlap_comm": false}; slower',
            ds_config={"zero_optimization.overlap_comm": False},
        )


def zero_section(report: RehearsalReport) -> dict[str, Any]:
    """The ds_config's; empty without one."""
    section = (report.run.ds_config or {}).get("zero_optimization")
    return section if isinstance(section, dict) else {}


def offloads(zero: dict[str, Any], key: str) -> bool:
    """Whether the section `key` sends anything away from the GPU; by itself it does not."""
    section = zero.get(key)
    return isinstance(section, dict) and section.get("device", "none") != "none"


def integer(value: Any, default: int) -> int:
    """The number, or `default` for what is absent or still "auto"."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _share(report: RehearsalReport, *categories: str) -> float:
    held = sum(report.device.at_peak.get(category, 0) for category in categories)
    return held / max(1, report.device.peak_bytes)
