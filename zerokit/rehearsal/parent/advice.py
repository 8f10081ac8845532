"""Which changes would lower the peak, or make steps faster, each found by rehearsing it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerokit.console import note, progress
from zerokit.errors import ZerokitError
from zerokit.rehearsal.parent.job import Overrides, RehearsalJob
from zerokit.rehearsal.report.report import Advice, NotRehearsed, RehearsalReport
from zerokit.units import format_bytes, format_span

_CHECKPOINTED = 1.2
"""``recomputed`` from which on layers have checkpoints; if all have, it is 4/3 or more."""
_SMALL_BUCKET = 50_000_000
_DEFAULT_BUCKET = 500_000_000
"""reduce_bucket_size where the config has none (DeepSpeed zero/config.py, DeepSpeedZeroConfig)."""


_EXPOSED = 0.02
"""Share of a step from which on hiding communication is tried."""
_RECOMPUTED = 1.05
"""``recomputed`` from which on something is recomputed in the backward pass."""
_LARGE_PREFETCH = 500_000_000
_DEFAULT_PREFETCH = 50_000_000
"""stage3_prefetch_bucket_size where the config has none (DeepSpeed zero/config.py, DeepSpeedZeroConfig)."""


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
    """Part of the error with which the run refuses this."""
    otherwise: Candidate | None = None
    """What is tried if the run refuses this with that error."""

    @property
    def changes_micro_batch(self) -> bool:
        """Whether it changes the size of batches."""
        return (self.micro_batch_divisor, self.micro_batch_multiplier) != (1, 1)

    @property
    def resizes_step(self) -> bool:
        """Whether a step may have more or fewer examples with it."""
        return (self.micro_batch_divisor, self.micro_batch_multiplier, self.num_gpus_factor) != (1, 1, 1)

    def applied_to(self, job: RehearsalJob, folder: Path, number: int) -> RehearsalJob:
        """The job with this change.

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
    if stage == 3 and not _offloads(zero, "offload_param") and _share(report, "parameters") > 0.02:
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
    if _integer(zero.get("reduce_bucket_size"), _DEFAULT_BUCKET) > _SMALL_BUCKET:
        yield Candidate(
            change="smaller reduce buckets",
            how=f'"zero_optimization": {{"reduce_bucket_size": {_SMALL_BUCKET}}}',
            ds_config={"zero_optimization.reduce_bucket_size": _SMALL_BUCKET},
        )
    # Stage 3 overlaps by default (DeepSpeed zero/config.py, overlap_comm_valid).
    if zero.get("overlap_comm", stage == 3) not in (False, None):
        yield Candidate(
            change="no overlap of communication",
            how='"zero_optimization": {"overlap_comm": false}; slower',
            ds_config={"zero_optimization.overlap_comm": False},
        )


def _zero_section(report: RehearsalReport) -> dict[str, Any]:
    """The ds_config's; empty without one."""
    section = (report.run.ds_config or {}).get("zero_optimization")
    return section if isinstance(section, dict) else {}


def _offloads(zero: dict[str, Any], key: str) -> bool:
    """Whether the section `key` sends anything away from the GPU; by itself it does not."""
    section = zero.get(key)
    return isinstance(section, dict) and section.get("device", "none") != "none"


def _integer(value: Any, default: int) -> int:
    """The number, or `default` for what is absent or still "auto"."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _share(report: RehearsalReport, *categories: str) -> float:
    held = sum(report.device.at_peak.get(category, 0) for category in categories)
    return held / max(1, report.device.peak_bytes)


def faster(report: RehearsalReport) -> Iterator[Candidate]:
    """What may shorten a step; `report` has its time."""
    assert report.time is not None
    zero = _zero_section(report)
    stage = _integer(zero.get("stage"), 0)
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
    if _offloads(_zero_section(report), "offload_param"):
        how += ' without "offload_param"'  # which is of stage 3 alone
    yield Candidate(
        change=f"ZeRO stage {lower}",
        how=how,
        ds_config={"zero_optimization.stage": lower, "zero_optimization.offload_param": None},
    )


def _offload_less(zero: dict[str, Any]) -> Iterator[Candidate]:
    for key, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        if _offloads(zero, key):
            yield Candidate(
                change=f"{what} on the GPU",
                how=f'"zero_optimization" without "{key}"',
                ds_config={f"zero_optimization.{key}": None},
            )


def _hide_communication(zero: dict[str, Any], stage: int) -> Iterator[Candidate]:
    # Stage 3 overlaps by default (DeepSpeed zero/config.py, overlap_comm_valid).
    if stage > 0 and not zero.get("overlap_comm", stage == 3):
        yield Candidate(
            change="overlap of communication",
            how='"zero_optimization": {"overlap_comm": true}',
            ds_config={"zero_optimization.overlap_comm": True},
        )
    if stage > 0 and _integer(zero.get("reduce_bucket_size"), _DEFAULT_BUCKET) < _DEFAULT_BUCKET:
        yield Candidate(
            change="larger reduce buckets",
            how=f'"zero_optimization": {{"reduce_bucket_size": {_DEFAULT_BUCKET}}}',
            ds_config={"zero_optimization.reduce_bucket_size": _DEFAULT_BUCKET},
        )
    if stage == 3 and _integer(zero.get("stage3_prefetch_bucket_size"), _DEFAULT_PREFETCH) < _LARGE_PREFETCH:
        yield Candidate(
            change="more prefetching",
            how=f'"zero_optimization": {{"stage3_prefetch_bucket_size": {_LARGE_PREFETCH}}}',
            ds_config={"zero_optimization.stage3_prefetch_bucket_size": _LARGE_PREFETCH},
        )


_PARALLEL = 2
_MOST = 5
_SIGNIFICANT = 0.01
"""Share of the peak, or of the GPU time of a token."""
_Outcome = tuple[Candidate, RehearsalReport | ZerokitError]
"""What was rehearsed in the end, and its result."""
_LEAST_FOR_MEMORY = 2
"""At least this many changes that save memory are listed after those that make steps faster."""


def candidates(report: RehearsalReport) -> Iterator[Candidate]:
    """Changes that may lower memory, and, where time is rehearsed and the run fits, time."""
    yield from smaller(report)
    if report.time is not None and report.fit.verdict != "does not fit":
        yield from faster(report)


def advise(
    report: RehearsalReport,
    job: RehearsalJob,
    folder: Path,
    rehearse: Callable[[RehearsalJob, threading.Event], RehearsalReport],
) -> tuple[list[Advice], list[NotRehearsed]]:
    """Rehearse what may help, two changes at a time, and keep what helps most.

    Needed memory and the change that is tried are printed on stderr, because this may take long.

    Args:
        report: of the run as it is.
        job: of the run as it is.
        folder: for the files of the further rehearsals.
        rehearse: gives the report of a job, or raises ZerokitError if it cannot be rehearsed. It ends once
            the event is set.

    Returns:
        The most helpful changes first, and the changes that could not be rehearsed. If time is known and the
        run fits, up to five changes that make tokens faster come first; changes that save memory fill up to
        five, or are two if that is more. Changes that gain 1 % or less are left out unless they make the run
        fit, and so are changes that the host cannot hold.
    """
    chosen = list(candidates(report))
    found = []
    failed = []
    stop = threading.Event()
    if chosen:
        needs = format_span(report.fit.low_bytes, report.fit.high_bytes)
        has = format_bytes(report.fit.gpu_memory_bytes)
        host = "" if _host_holds(report) else ", and the host has too little"
        note(f"{report.fit.verdict}: a GPU needs {needs} of {has}{host}. Now changes are rehearsed")
    with progress(transient=True) as bar, ThreadPoolExecutor(_PARALLEL) as pool:
        task = bar.add_task("Trying changes", total=len(chosen), note="")

        def outcome(number: int, candidate: Candidate) -> _Outcome:
            try:
                return candidate, rehearse(candidate.applied_to(job, folder, number), stop)
            except ZerokitError as error:
                if candidate.otherwise is None or candidate.refusal not in error.message:
                    return candidate, error
            return outcome(number + len(chosen), candidate.otherwise)

        def tried(number: int, candidate: Candidate) -> _Outcome:
            bar.update(task, note=candidate.change, refresh=True)
            if bar.disable:
                note(f"Trying change {number} of {len(chosen)}: {candidate.change}")
            return outcome(number, candidate)

        running: list[Future[_Outcome]] = []
        try:
            for number, candidate in enumerate(chosen, 1):
                running.append(pool.submit(tried, number, candidate))
            for future in as_completed(running):
                bar.update(task, advance=1)
                candidate, changed = future.result()
                if isinstance(changed, ZerokitError):
                    failed.append(NotRehearsed(change=candidate.change, why=changed.message))
                elif candidate.changes_micro_batch and _has_same_batch(report, changed):
                    why = (
                        "the first batch is as large as before: of one example, or not of a size "
                        "that the script gives a DataLoader"
                    )
                    failed.append(NotRehearsed(change=candidate.change, why=why))
                elif _host_holds(changed):
                    found.append(_advice(candidate, report, changed))
        except BaseException:  # Ctrl-C, and a scheduler's signal
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return _best(report, found), sorted(failed, key=lambda one: one.change)


def _best(report: RehearsalReport, found: list[Advice]) -> list[Advice]:
    """The most helpful changes first: by time if it is known and the run fits, then by bytes."""
    if report.fit.verdict == "does not fit":
        chosen = [one for one in found if _saves(report, one) or one.verdict != "does not fit"]
        return sorted(chosen, key=lambda one: (-one.saves_bytes, one.change))[:_MOST]
    smaller = sorted(
        (one for one in found if _saves(report, one)), key=lambda one: (-one.saves_bytes, one.change)
    )
    quicker = sorted(
        (one for one in found if (one.faster or 0) > _SIGNIFICANT and one.verdict != "does not fit"),
        key=lambda one: (-(one.faster or 0), one.change),
    )
    best = quicker[:_MOST]
    return best + [one for one in smaller if one not in best][: max(_MOST - len(best), _LEAST_FOR_MEMORY)]


def _saves(report: RehearsalReport, advice: Advice) -> bool:
    return advice.saves_bytes > _SIGNIFICANT * report.device.peak_bytes


def _has_same_batch(report: RehearsalReport, changed: RehearsalReport) -> bool:
    """Whether the first batch has the same size as before."""
    return (
        report.batches is not None
        and changed.batches is not None
        and changed.batches.first == report.batches.first
    )


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
        step_seconds=None if changed.time is None else changed.time.step_seconds,
        faster=_faster(candidate, report, changed),
    )


def _faster(candidate: Candidate, report: RehearsalReport, changed: RehearsalReport) -> float | None:
    """The share of GPU time that a token saves; of a step where tokens are not known."""
    before, after = report.time, changed.time
    if before is None or after is None or not before.step_seconds:
        return None
    if before.tokens_per_second and after.tokens_per_second:
        more_gpus = changed.world_size / report.world_size
        return 1 - more_gpus * before.tokens_per_second / after.tokens_per_second
    if candidate.resizes_step:
        return None
    return 1 - after.step_seconds / before.step_seconds
