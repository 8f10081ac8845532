"""Which changes would lower the peak, each found by rehearsing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerokit.console import note, progress
from zerokit.errors import ZerokitError
from zerokit.rehearsal.job import Overrides, RehearsalJob
from zerokit.rehearsal.report import Advice, NotRehearsed, RehearsalReport

_AT_ONCE = 2
_MOST = 5
_WORTH_SAYING = 0.01
"""Of the peak."""
_SMALL_BUCKET = 50_000_000
_DEFAULT_BUCKET = 500_000_000
"""reduce_bucket_size where the config has none (DeepSpeed zero/config.py, DeepSpeedZeroConfig)."""


@dataclass(frozen=True)
class Candidate:
    """A change that may help."""

    change: str
    how: str
    ds_config: dict[str, Any] = field(default_factory=dict)
    """Values by dotted key."""
    gradient_checkpointing: bool = False
    micro_batch_divisor: int = 1
    num_gpus_factor: int = 1

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
        if self.gradient_checkpointing:
            overrides["gradient_checkpointing"] = True
        if self.micro_batch_divisor > 1:
            overrides["micro_batch_divisor"] = (
                overrides.get("micro_batch_divisor", 1) * self.micro_batch_divisor
            )
        return job.model_copy(
            update={
                "num_gpus": num_gpus,
                "gpus_per_node": nodes_of,
                "overrides": overrides,
                "exchange_folder": str(own / "exchange") if job.exchange_folder else None,
                "report_file": str(own / "report.json"),
                "recording_file": None,
                "trace_file": None,
                "plot_file": None,
                "snapshot_file": None,
            }
        )


def advise(
    report: RehearsalReport,
    job: RehearsalJob,
    folder: Path,
    rehearse: Callable[[RehearsalJob], RehearsalReport],
) -> tuple[list[Advice], list[NotRehearsed]]:
    """Rehearse what may help, two changes at a time, saying on stderr which, and keep what helps most.

    Args:
        report: of the run as it is.
        job: of the run as it is.
        folder: for the files of the further rehearsals.
        rehearse: gives the report of a job; raises ZerokitError if it cannot be rehearsed.

    Returns:
        At most five changes, the most helpful first; none that saves 1 % of the peak or less, unless it makes
        the run fit, and none that the host cannot hold. And those that could not be rehearsed.
    """
    chosen = list(candidates(report))
    found = []
    failed = []
    with progress(transient=True) as bar, ThreadPoolExecutor(_AT_ONCE) as pool:
        task = bar.add_task("Trying changes", total=len(chosen), note="")

        def tried(number: int, candidate: Candidate) -> RehearsalReport:
            bar.update(task, note=candidate.change, refresh=True)
            if bar.disable:
                note(f"Trying change {number} of {len(chosen)}: {candidate.change}")
            return rehearse(candidate.applied_to(job, folder, number))

        try:
            running = {
                pool.submit(tried, number, candidate): candidate for number, candidate in enumerate(chosen, 1)
            }
            for future in as_completed(running):
                bar.update(task, advance=1)
                try:
                    changed = future.result()
                except ZerokitError as error:
                    failed.append(NotRehearsed(change=running[future].change, why=error.message))
                    continue
                if _host_holds(changed):
                    found.append(_advice(running[future], report, changed))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    stuck = report.fit.verdict == "does not fit"
    worth = [
        advice
        for advice in found
        if advice.saves_bytes > _WORTH_SAYING * report.device.peak_bytes
        or (stuck and advice.verdict != "does not fit")
    ]
    best = sorted(worth, key=lambda advice: (-advice.saves_bytes, advice.change))[:_MOST]
    return best, sorted(failed, key=lambda one: one.change)


def _host_holds(report: RehearsalReport) -> bool:
    return report.fit.host is None or report.fit.host.verdict != "does not fit"


def _advice(candidate: Candidate, report: RehearsalReport, changed: RehearsalReport) -> Advice:
    return Advice(
        change=candidate.change,
        saves_bytes=report.device.peak_bytes - changed.device.peak_bytes,
        peak_bytes=changed.device.peak_bytes,
        host_bytes=changed.host.per_node_peak_bytes,
        verdict=changed.fit.verdict,
        how=candidate.how,
        ds_config=candidate.ds_config,
    )


def candidates(report: RehearsalReport) -> Iterator[Candidate]:
    """What may help, by what is alive at the peak and what the config does not use yet."""
    zero = _zero_section(report)
    stage = _integer(zero.get("stage"), 0)
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
    if stage >= 1 and not _offloads(zero, "offload_optimizer"):
        yield Candidate(
            change="optimizer on the host",
            how='"zero_optimization": {"offload_optimizer": {"device": "cpu"}}; and '
            '"zero_force_ds_cpu_optimizer": false if the script makes its own optimizer',
            ds_config={
                "zero_optimization.offload_optimizer.device": "cpu",
                # An optimizer that the script made itself then runs on the host as it is.
                "zero_force_ds_cpu_optimizer": False,
            },
        )
    if stage == 3 and not _offloads(zero, "offload_param") and _share(report, "parameters") > 0.02:
        yield Candidate(
            change="parameters on the host",
            how='"zero_optimization": {"offload_param": {"device": "cpu"}}',
            ds_config={"zero_optimization.offload_param.device": "cpu"},
        )


def _shrink_activations(report: RehearsalReport) -> Iterator[Candidate]:
    if _share(report, "activations", "other") > 0.1:
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
    if _integer(zero.get("reduce_bucket_size"), _DEFAULT_BUCKET) > _SMALL_BUCKET:
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


def _zero_section(report: RehearsalReport) -> dict[str, Any]:
    section = (report.run.ds_config or {}).get("zero_optimization")
    return section if isinstance(section, dict) else {}


def _offloads(zero: dict[str, Any], key: str) -> bool:
    section = zero.get(key)
    return isinstance(section, dict) and section.get("device", "cpu") != "none"


def _integer(value: Any, default: int) -> int:
    """The number, or `default` for what is absent or still "auto"."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _share(report: RehearsalReport, *categories: str) -> float:
    held = sum(report.device.at_peak.get(category, 0) for category in categories)
    return held / max(1, report.device.peak_bytes)
