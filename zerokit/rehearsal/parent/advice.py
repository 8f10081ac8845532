"""Which changes would lower the peak, or make steps faster, each found by rehearsing it."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from zerokit.console import note, progress
from zerokit.errors import ZerokitError
from zerokit.rehearsal.job import Overrides, RehearsalJob
from zerokit.rehearsal.report.judgements import IN_FP32, USE_BF16
from zerokit.rehearsal.report.report import Advice, NotRehearsed, RehearsalReport
from zerokit.rehearsal.watching.overrides import merged
from zerokit.reporting.verdicts import NEGATIVE
from zerokit.units import format_bytes, format_seconds, format_span

_HAS_CHECKPOINTS = 1.2
"""``recomputed`` from which on layers have checkpoints; if all have, it is 4/3 or more."""
_RECOMPUTES = 1.05
"""``recomputed`` from which on something is recomputed in the backward pass."""
_EXPOSED_SHARE = 0.02
"""Share of a step from which on hiding communication is tried."""
_SMALL_BUCKET = 50_000_000
_LARGE_PREFETCH = 500_000_000
_DEFAULTS = {"stage": 0, "reduce_bucket_size": 500_000_000, "stage3_prefetch_bucket_size": 50_000_000}
"""DeepSpeed's (zero/config.py, DeepSpeedZeroConfig)."""
_OPTIMIZER_REFUSED = "ZeRO-Offload with a client provided optimizer"
"""DeepSpeed's error for the offload of an optimizer that the script makes (engine.py)."""
_AT_A_TIME = 2
_MOST = 5
_LEAST_GAIN = 0.01
"""Share of the peak, or of the GPU time of a token."""
_MOST_COMBINED = 4
"""Combinations of changes that are tried."""
_LEAST_FOR_MEMORY = 2
"""At least this many changes that save memory are listed after those that make steps faster."""


@dataclass(frozen=True)
class Candidate:
    """A change that may help."""

    change: str
    how: str
    """What to write where."""
    ds_config: dict[str, Any] = field(default_factory=dict)
    """Values by dotted key; None removes the key."""
    gradient_checkpointing: bool | None = None
    """None: as the script has it."""
    micro_batch_factor: float = 1
    num_gpus_factor: int = 1
    otherwise: Candidate | None = None
    """What is tried if DeepSpeed refuses to offload the script's optimizer."""

    def applied_to(self, job: RehearsalJob, folder: Path, number: int) -> RehearsalJob:
        """The job with this change, number `number`, with a folder of its own in `folder`."""
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
        if self.micro_batch_factor != 1:
            overrides["micro_batch_factor"] = self.micro_batch_factor
        return replace(
            job,
            num_gpus=num_gpus,
            gpus_per_node=nodes_of,
            overrides=overrides,
            exchange_folder=str(own / "exchange") if job.exchange_folder else None,
            recording_file=str(own / "rank-0.npz"),
        )


class _Zero:
    """The section `zero_optimization` of a run."""

    def __init__(self, report: RehearsalReport) -> None:
        section = (report.run.ds_config or {}).get("zero_optimization")
        self._section: dict[str, Any] = section if isinstance(section, dict) else {}
        self.stage = self.number("stage")
        # Stage 3 overlaps by default (DeepSpeed zero/config.py, overlap_comm_valid).
        self.overlaps = bool(self._section.get("overlap_comm", self.stage == 3))

    def number(self, key: str) -> int:
        """The number, or the default for what is absent or still "auto"."""
        value = self._section.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
        return _DEFAULTS[key]

    def offloads(self, key: str) -> bool:
        """Whether the section `key` sends anything away from the GPU; by itself it does not."""
        section = self._section.get(key)
        return isinstance(section, dict) and section.get("device", "none") != "none"


def _set(change: str, how: str = "", **values: Any) -> Candidate:
    """A change of keys of `zero_optimization`; `__` stands for a dot."""
    keys = {f"zero_optimization.{key.replace('__', '.')}": value for key, value in values.items()}
    return Candidate(change, how or _as_json(keys), keys)


def _as_json(values: dict[str, Any]) -> str:
    """The part of a ds_config that has these values by dotted key."""
    return json.dumps(merged({}, values))[1:-1]


def smaller(report: RehearsalReport) -> Iterator[Candidate]:
    """What may lower the peak."""
    zero = _Zero(report)
    if report.world_size > 1:
        for higher in sorted({zero.stage + 1, 3}):
            if zero.stage < higher <= 3:
                yield _set(f"ZeRO stage {higher}", stage=higher)
    if not _lacks_activations(report):
        yield from _offloads(report, zero)
    if report.recomputed < _HAS_CHECKPOINTS and _share(report, "activations", "other") > 0.1:
        yield Candidate(
            "gradient checkpointing",
            "model.gradient_checkpointing_enable(), or gradient_checkpointing=True of the Trainer",
            gradient_checkpointing=True,
        )
    micro_batch_size = (report.run.ds_config or {}).get("train_micro_batch_size_per_gpu")
    if micro_batch_size != 1 and _share(report, "activations", "other") > 0.05:
        yield Candidate(
            "half the micro-batch",
            "half train_micro_batch_size_per_gpu, twice gradient_accumulation_steps",
            micro_batch_factor=0.5,
        )
    if _lacks_activations(report):
        yield from _offloads(report, zero)
    if zero.stage > 0 and _share(report, "buffers", "gradients", "other") > 0.05:
        if zero.number("reduce_bucket_size") > _SMALL_BUCKET:
            yield _set("smaller reduce buckets", reduce_bucket_size=_SMALL_BUCKET)
        if zero.overlaps:
            how = '"zero_optimization": {"overlap_comm": false}; slower'
            yield _set("no overlap of communication", how, overlap_comm=False)
    if zero.stage > 0:
        how = f"{report.world_size * 2} GPUs, same micro-batch size"
        yield Candidate("twice the GPUs", how, num_gpus_factor=2)


def _offloads(report: RehearsalReport, zero: _Zero) -> Iterator[Candidate]:
    if zero.stage >= 1 and not zero.offloads("offload_optimizer"):
        offload = _set("optimizer on the host", offload_optimizer__device="cpu")
        keys = {**offload.ds_config, "zero_force_ds_cpu_optimizer": False}
        as_made = Candidate("optimizer on the host, as the script makes it", _as_json(keys), keys)
        yield replace(offload, otherwise=as_made)
    if zero.stage == 3 and not zero.offloads("offload_param") and _share(report, "parameters") > 0.02:
        yield _set("parameters on the host", offload_param__device="cpu")


def _lacks_activations(report: RehearsalReport) -> bool:
    """Whether the run does not fit, and would without its activations."""
    without = report.fit.low_bytes - report.device.at_peak.get("activations", 0)
    return report.fit.verdict in NEGATIVE and without <= report.fit.gpu_memory_bytes


def only_named(report: RehearsalReport) -> Iterator[NotRehearsed]:
    """What keeps fewer activations where they do not fit, and needs a change of the script."""
    if not _lacks_activations(report):
        return
    if report.world_size > 1:
        why = "divides activations among GPUs; write parallel: {sequence: N} in a recipe of zerokit train, or give"
        why += " accelerate ParallelismConfig(sp_backend='deepspeed', sp_size=N), with ZeRO stage 3"
        yield NotRehearsed(change="sequence parallelism", why=why)
    why = "computes the logits of a part of the tokens at a time; write task.chunked_loss: true in a recipe, or use"
    why += " Liger's fused loss or DeepSpeed's TiledFusedLogitsLoss"
    yield NotRehearsed(change="tiled loss", why=why)


def _share(report: RehearsalReport, *categories: str) -> float:
    held = sum(report.device.at_peak.get(category, 0) for category in categories)
    return held / max(1, report.device.peak_bytes)


def faster(report: RehearsalReport) -> Iterator[Candidate]:
    """What may shorten a step; `report` has its time."""
    assert report.time is not None
    zero = _Zero(report)
    yield Candidate(
        "twice the micro-batch",
        "twice train_micro_batch_size_per_gpu, half gradient_accumulation_steps if there are any",
        micro_batch_factor=2,
    )
    if report.recomputed > _RECOMPUTES:
        yield Candidate(
            "no gradient checkpointing",
            "gradient_checkpointing=False of the Trainer, or model.gradient_checkpointing_disable()",
            gradient_checkpointing=False,
        )
    if report.world_size > 1 and zero.stage >= 2:
        lower = _set(f"ZeRO stage {zero.stage - 1}", stage=zero.stage - 1, offload_param=None)
        if zero.offloads("offload_param"):  # which is of stage 3 alone
            lower = replace(lower, how=f'{lower.how} without "offload_param"')
        yield lower
    for key, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        if zero.offloads(key):
            yield _set(f"{what} on the GPU", f'"zero_optimization" without "{key}"', **{key: None})
    if zero.stage > 0 and report.time.breakdown.communication > _EXPOSED_SHARE * report.time.step_seconds:
        if not zero.overlaps:
            yield _set("overlap of communication", overlap_comm=True)
        if zero.number("reduce_bucket_size") < _DEFAULTS["reduce_bucket_size"]:
            yield _set("larger reduce buckets", reduce_bucket_size=_DEFAULTS["reduce_bucket_size"])
        if zero.stage == 3 and zero.number("stage3_prefetch_bucket_size") < _LARGE_PREFETCH:
            yield _set("more prefetching", stage3_prefetch_bucket_size=_LARGE_PREFETCH)


def precision(report: RehearsalReport) -> Iterator[Candidate]:
    """Training in bf16, if DeepSpeed trains in fp32 and nothing asks for that."""
    if report.run.ds_config is not None and any(one.startswith(IN_FP32) for one in report.mistakes):
        yield Candidate("bf16", USE_BF16, {"bf16.enabled": True})


def candidates(report: RehearsalReport) -> Iterator[Candidate]:
    """Changes that may lower memory, and, where time is rehearsed and the run fits, time."""
    yield from precision(report)
    yield from smaller(report)
    if report.time is not None and report.fit.verdict not in NEGATIVE:
        yield from faster(report)


def advise(
    report: RehearsalReport,
    job: RehearsalJob,
    folder: Path,
    rehearse: Callable[[RehearsalJob, threading.Event], RehearsalReport],
    of: Iterable[Candidate] | None = None,
) -> Outcome:
    """Rehearse what may help, two changes at a time, and keep what helps most.

    Needed memory and the change that is tried are printed on stderr, because this may take long.

    Args:
        rehearse: gives the report of a job, or raises ZerokitError if it cannot be rehearsed. It ends once
            the event is set.
        of: the changes to try; None: all that may help, and two or three of them together where none of them
            makes the run fit.

    Returns:
        The most helpful changes first, and the changes that could not be rehearsed; after Ctrl-C, what is
        known by then. If time is known and the
        run fits, up to five changes that make tokens faster come first; changes that save memory fill up to
        five, or are two if that is more. Changes that gain 1 % or less are left out unless they make the run
        fit, and so are changes that the host cannot hold.
    """
    chosen = list(candidates(report)) if of is None else list(of)
    trials = _Trials(report, job, folder, rehearse)
    if chosen:
        needs = format_span(report.fit.low_bytes, report.fit.high_bytes)
        has = format_bytes(report.fit.gpu_memory_bytes)
        host = "" if _host_holds(report) else ", and the host has too little"
        note(f"{report.fit.verdict}: a GPU needs {needs} of {has}{host}. Now changes are rehearsed")
    interrupted = False
    try:
        trials.run(chosen)
        if of is None and report.fit.verdict in NEGATIVE:
            for combined in combinations_of(report, trials.found):
                trials.run([combined])
                last = trials.found[-1]
                if last.candidate is combined and last.advice.verdict not in NEGATIVE:
                    break
    except KeyboardInterrupt:
        interrupted = True
    best = _best(report, [one.advice for one in trials.found])
    named = only_named(report) if of is None else ()
    return Outcome(best, [*named, *sorted(trials.failed, key=lambda one: one.change)], interrupted)


class Outcome(NamedTuple):
    """What came of rehearsing changes, by the names of the report."""

    advice: list[Advice]
    not_rehearsed: list[NotRehearsed]
    interrupted: bool
    """Whether Ctrl-C ended it."""


class _Found(NamedTuple):
    candidate: Candidate
    advice: Advice


class _Trials:
    """Rehearses changes, and keeps what each gave."""

    def __init__(
        self,
        report: RehearsalReport,
        job: RehearsalJob,
        folder: Path,
        rehearse: Callable[[RehearsalJob, threading.Event], RehearsalReport],
    ) -> None:
        self._report, self._job, self._folder, self._rehearse = report, job, folder, rehearse
        self._begun = 0
        self.found: list[_Found] = []
        self.failed: list[NotRehearsed] = []

    def run(self, chosen: list[Candidate]) -> None:
        """Rehearse changes, two at a time; a line on stderr has the result of each."""
        stop = threading.Event()
        with progress(transient=True) as bar, ThreadPoolExecutor(_AT_A_TIME) as pool:
            task = bar.add_task("Trying changes", total=len(chosen), note="")

            def tried(number: int, candidate: Candidate) -> _Outcome:
                bar.update(task, note=candidate.change, refresh=True)
                if bar.disable:
                    note(f"Trying change {number} of {len(chosen)}: {candidate.change}")
                return self._outcome(candidate, stop)

            running: list[Future[_Outcome]] = []
            try:
                for number, candidate in enumerate(chosen, 1):
                    running.append(pool.submit(tried, number, candidate))
                for future in as_completed(running):
                    bar.update(task, advance=1)
                    self._keep(*future.result())
            except BaseException:  # Ctrl-C, and a scheduler's signal
                stop.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _outcome(self, candidate: Candidate, stop: threading.Event) -> _Outcome:
        self._begun += 1
        try:
            return candidate, self._rehearse(candidate.applied_to(self._job, self._folder, self._begun), stop)
        except ZerokitError as error:
            if candidate.otherwise is None or _OPTIMIZER_REFUSED not in error.message:
                return candidate, error
        return self._outcome(candidate.otherwise, stop)

    def _keep(self, candidate: Candidate, changed: RehearsalReport | ZerokitError) -> None:
        if isinstance(changed, ZerokitError):
            self.failed.append(NotRehearsed(change=candidate.change, why=changed.message))
        elif candidate.micro_batch_factor != 1 and _has_same_batch(self._report, changed):
            why = (
                "the first batch is as large as before: of one example, or not of a size "
                "that the script gives a DataLoader"
            )
            self.failed.append(NotRehearsed(change=candidate.change, why=why))
        elif _host_holds(changed):
            advice = _advice(candidate, self._report, changed)
            self.found.append(_Found(candidate, advice))
            saved = f", saves {format_bytes(advice.saves_bytes)}" if advice.saves_bytes > 0 else ""
            taken = "" if advice.step_seconds is None else f", a step {format_seconds(advice.step_seconds)}"
            note(f"{advice.change}: {advice.verdict}, peak {format_bytes(advice.peak_bytes)}{saved}{taken}")


def combinations_of(report: RehearsalReport, found: list[_Found]) -> Iterator[Candidate]:
    """Changes that may fit together if none fits alone: two before three, and the cheapest first."""
    if any(one.advice.verdict not in NEGATIVE for one in found):
        return
    order = [one.change for one in smaller(report)]
    helpful = [one for one in found if one.advice.saves_bytes > _LEAST_GAIN * report.device.peak_bytes]
    helpful.sort(key=lambda one: order.index(one.advice.change) if one.advice.change in order else len(order))
    excess = report.fit.low_bytes - report.fit.gpu_memory_bytes
    tried = 0
    for size in (2, 3):
        for chosen in combinations(helpful, size):
            keys = [key for one in chosen for key in one.candidate.ds_config]
            together = sum(one.advice.saves_bytes for one in chosen)
            if len(set(keys)) == len(keys) and together >= excess and tried < _MOST_COMBINED:
                tried += 1
                yield functools.reduce(_combined, (one.candidate for one in chosen))


def _combined(one: Candidate, other: Candidate) -> Candidate:
    return Candidate(
        f"{one.change} and {other.change}",
        f"{one.how}; {other.how}",
        {**one.ds_config, **other.ds_config},
        other.gradient_checkpointing if one.gradient_checkpointing is None else one.gradient_checkpointing,
        one.micro_batch_factor * other.micro_batch_factor,
        one.num_gpus_factor * other.num_gpus_factor,
    )


_Outcome = tuple[Candidate, RehearsalReport | ZerokitError]
"""What was rehearsed in the end, and its result."""


def _best(report: RehearsalReport, found: list[Advice]) -> list[Advice]:
    """The most helpful changes first: by time if it is known and the run fits, then by bytes."""

    def saves(advice: Advice) -> bool:
        return advice.saves_bytes > _LEAST_GAIN * report.device.peak_bytes

    by_bytes = sorted(found, key=lambda one: (-one.saves_bytes, one.change))
    if report.fit.verdict in NEGATIVE:
        by_bytes.sort(key=lambda one: one.verdict in NEGATIVE)
        return [one for one in by_bytes if saves(one) or one.verdict not in NEGATIVE][:_MOST]
    quicker = sorted(
        (one for one in found if (one.faster or 0) > _LEAST_GAIN and one.verdict not in NEGATIVE),
        key=lambda one: (-(one.faster or 0), one.change),
    )
    best = quicker[:_MOST]
    others = [one for one in by_bytes if saves(one) and one not in best]
    return best + others[: max(_MOST - len(best), _LEAST_FOR_MEMORY)]


def _has_same_batch(report: RehearsalReport, changed: RehearsalReport) -> bool:
    """Whether the first batch has the same size as before."""
    before, after = report.batches, changed.batches
    return before is not None and after is not None and after.first == before.first


def _host_holds(report: RehearsalReport) -> bool:
    return report.fit.host is None or report.fit.host.verdict not in NEGATIVE


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
    if (candidate.micro_batch_factor, candidate.num_gpus_factor) != (1, 1):
        return None  # a step may have more or fewer examples
    return 1 - after.step_seconds / before.step_seconds
