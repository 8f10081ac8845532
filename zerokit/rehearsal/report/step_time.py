"""Where the time of a step goes, from what the streams and the host did."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.costs.known import Class
from zerokit.hardware.costs.ranges import step_range
from zerokit.hardware.gpus import Gpu
from zerokit.rehearsal.native.clock import HOST_STREAM, WorkKind
from zerokit.rehearsal.recording import Array, Recording
from zerokit.rehearsal.report.last_step import stream_work
from zerokit.rehearsal.report.report import DataTime, KernelTime, StepTime, TimeBreakdown, TimeReport
from zerokit.rehearsal.timing.operators import class_of_kernel
from zerokit.reporting.phases import RUN_PHASES
from zerokit.units import quantity

MOST_KERNELS = 10
_MUCH = 0.2
"""Share of a step from which it counts as limited by the CPU."""
_PARTS = {
    WorkKind.KERNEL: "compute",
    WorkKind.OPTIMIZER: "host_optimizer",
    WorkKind.HOST_OPERATOR: "host_operators",
    WorkKind.COLLECTIVE: "communication",
    WorkKind.COPY: "copies",
    WorkKind.MEETING: "other_ranks",
}
"""What a moment of a step is counted as: the first of these that goes on then, "launch" if none does."""
_KERNEL_CLASSES: tuple[Class, ...] = ("matmul", "attention", "memory_bound")
_OTHER_CLASSES: dict[WorkKind, Class] = {
    WorkKind.COLLECTIVE: "collective",
    WorkKind.COPY: "copy",
    WorkKind.OPTIMIZER: "host_optimizer",
    WorkKind.HOST_OPERATOR: "host_optimizer",
}
"""By which kind of cost each kind of work goes."""


def time_of(recording: Recording, costs: CardCosts, rank: int) -> TimeReport | None:
    """The times of the steps; None if no step was made."""
    times = recording.facts.times
    if times is None or not times.step_ends:
        return None
    ends = times.step_ends
    spans = recording.spans
    begins = [_first_step_begins(spans, ends[0]), *ends[:-1]]
    steps = [
        StepTime(step=number, seconds=(end - begin) / 1e9, breakdown=breakdown(spans, begin, end))
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True), start=1)
    ]
    mark = recording.last_mark
    last = steps[min(mark.step if mark else len(steps), len(steps)) - 1]
    place = last.step - 1
    begin, end = begins[place], ends[place]
    peak = _peak_flops(costs.gpu)
    of_costs = _range(recording, begin, end, costs)
    batch = None if recording.facts.batches is None else recording.facts.batches.first
    found = step_range(
        of_costs,
        last.seconds,
        last.breakdown.model_dump(),
        costs,
        tokens=batch.tokens if batch is not None and batch.unit == "tokens" else None,
        deepspeed=recording.facts.data_parallel_ranks is not None,
    )
    tokens = times.tokens_per_step[place] if place < len(times.tokens_per_step) else None
    return TimeReport(
        rank=rank,
        step_seconds=last.seconds,
        **found._asdict(),
        costs_low_seconds=of_costs[0],
        costs_high_seconds=of_costs[1],
        step=last.step,
        breakdown=last.breakdown,
        tokens_per_second=None if tokens is None or not last.seconds else tokens / last.seconds,
        mfu=_share(times.model_flops[place], peak, last.seconds),
        hfu=_share(recording.flops[place], peak, last.seconds),
        peak_flops=peak,
        steps=steps,
        kernels=_kernels(recording, begin, end),
        critical_path=critical_path(recording.spans, recording.ops, begin, end)[:MOST_KERNELS],
        data=_data(times.reading, last),
        host_threads=times.host_threads,
        streams=stream_work(spans, begin, end),
    )


def _data(reading: DataTime | None, step: StepTime) -> DataTime | None:
    if reading is None:
        return None
    needed = reading.batch_seconds * reading.batches_of_step / step.seconds if step.seconds else 0.0
    return reading.model_copy(update={"workers_needed": max(1, math.ceil(needed))})


def doubts(time: TimeReport, costs: CardCosts) -> list[str]:
    """Warnings about the accuracy of the times."""
    own_work = time.breakdown.host_optimizer + time.breakdown.host_operators
    limited = costs.on_host(1, time.host_threads) / costs.on_host(1)
    if own_work >= _MUCH * time.step_seconds and round(limited, 1) > 1:
        return [
            f"CPU work is done by {quantity(time.host_threads or 0, 'thread')} of each rank, and "
            f"takes {limited:.1f} times as long as by all of the machine's cores: torchrun and accelerate "
            "give a rank one where OMP_NUM_THREADS is not set"
        ]
    return []


def _range(recording: Recording, begin: int, end: int, costs: CardCosts) -> tuple[float, float]:
    """The range of the costs: the shortest and the longest step, in seconds, within the uncertainty of all costs.

    The step is divided into moments in which the same spans run. Longest: each moment is stretched by the
    most uncertain work in it, and the CPU needs its time for all launches. Shortest: each moment is shortened
    as far as its work allows, but not below the time that one kind of work needs alone.
    """
    spans = recording.spans[(recording.spans["end"] > begin) & (recording.spans["begin"] < end)]
    edges = np.unique(np.clip(np.concatenate([[begin, end], spans["begin"], spans["end"]]), begin, end))
    seconds = np.diff(edges) / 1e9
    classes = {op: class_of_kernel(recording.ops[op]) for op in np.unique(spans["name"]).tolist()}
    class_of_span = np.array([classes[op] for op in spans["name"].tolist()], dtype=object)

    def active(chosen: Array) -> Array:
        """Whether any of the chosen spans runs, for each moment."""
        whole = _union(np.stack([spans["begin"][chosen], spans["end"][chosen]], axis=1))
        before = np.searchsorted(whole[:, 0], edges[:-1], side="right")
        return (before > 0) & (edges[:-1] < np.append(0, whole[:, 1])[before])

    def of_kind(kind: WorkKind) -> Array:
        return active(spans["kind"] == kind)

    beside = of_kind(WorkKind.COLLECTIVE)
    slower = costs.beside_collective_spread
    kernels = [
        (costs.spread(kind), active((spans["kind"] == WorkKind.KERNEL) & (class_of_span == kind)))
        for kind in _KERNEL_CLASSES
    ]
    lows = [np.min([np.where(on, of.low, np.inf) for of, on in kernels], axis=0) * np.where(beside, slower.low, 1)]
    highs = [np.max([np.where(on, of.high, 0) for of, on in kernels], axis=0) * np.where(beside, slower.high, 1)]
    for kind, cost in _OTHER_CLASSES.items():
        spread, on = costs.spread(cost), of_kind(kind)
        lows.append(np.where(on, spread.low, np.inf))
        highs.append(np.where(on, spread.high, 0))
    launch = costs.launch_spread
    # Other ranks are waited for while they do what this one does.
    meeting, others = of_kind(WorkKind.MEETING), [costs.spread(kind) for kind in _KERNEL_CLASSES]
    lows.append(np.where(meeting, min(of.low for of in others), np.inf))
    highs.append(np.where(meeting, max(of.high for of in others), 0))
    own_work = of_kind(WorkKind.OPTIMIZER) | of_kind(WorkKind.HOST_OPERATOR)
    launches = ~(of_kind(WorkKind.WAITING) | own_work)
    lows.append(np.where(launches | np.isinf(lows).all(axis=0), launch.low, np.inf))
    highest = np.max(highs, axis=0)
    highest = np.where(highest > 0, highest, launch.high)
    return (
        max(float(np.where(np.isinf(low), 0, low) @ seconds) for low in (np.min(lows, axis=0), *lows)),
        max(float(highest @ seconds), launch.high * float(launches @ seconds)),
    )


def _share(flops: float, peak: float | None, seconds: float) -> float | None:
    return flops / (peak * seconds) if peak and seconds else None


def _peak_flops(gpu: Gpu) -> float | None:
    """Dense, in 16 bits."""
    rate = gpu.tflops.get("bf16", gpu.tflops.get("fp16"))
    return None if rate is None else rate * 1e12


def _first_step_begins(spans: Array, end: int) -> int:
    """When the first work after the start was submitted: what comes before step 1 has the phase init."""
    later = spans[(spans["phase"] != RUN_PHASES.index("init")) & (spans["stream"] != HOST_STREAM)]
    return min(int(later["begin"].min()), end) if len(later) else end


def breakdown(spans: Array, begin: int, end: int) -> TimeBreakdown:
    """What each moment between two times is spent on, in seconds; the parts add up to the whole."""
    taken: Array = np.zeros((0, 2), dtype=np.int64)
    parts: dict[str, float] = {}
    for kind, name in _PARTS.items():
        own = spans[spans["kind"] == kind]
        intervals = np.stack([own["begin"], own["end"]], axis=1)
        before = _length(taken, begin, end)
        taken = _union(np.concatenate([taken, intervals]))
        parts[name] = (_length(taken, begin, end) - before) / 1e9
    parts["launch"] = (end - begin - _length(taken, begin, end)) / 1e9
    return TimeBreakdown(**parts)


def _union(intervals: Array) -> Array:
    """The same times as intervals that do not touch, in order."""
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    if not len(intervals):
        return intervals
    ends = np.maximum.accumulate(intervals[:, 1])
    starts_anew = np.concatenate([[True], intervals[1:, 0] > ends[:-1]])
    first = np.flatnonzero(starts_anew)
    last = np.concatenate([first[1:] - 1, [len(intervals) - 1]])
    return np.stack([intervals[first, 0], ends[last]], axis=1)


def _length(intervals: Array, begin: int, end: int) -> int:
    clipped = np.clip(intervals, begin, end)
    return int((clipped[:, 1] - clipped[:, 0]).sum())


def _kernels(recording: Recording, begin: int, end: int) -> list[KernelTime]:
    """The kinds of work that take most of a step, whatever else goes on meanwhile."""
    spans = recording.spans
    inside = spans[(spans["begin"] >= begin) & (spans["begin"] < end) & (spans["stream"] != HOST_STREAM)]
    inside = inside[inside["kind"] != WorkKind.MEETING]
    seconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name in np.unique(inside["name"]).tolist():
        own = inside[inside["name"] == name]
        kind = recording.ops[name].partition(".")[0]  # whichever overload
        seconds[kind] += int((own["end"] - own["begin"]).sum())
        counts[kind] += len(own)
    return _most_first(seconds, counts)[:MOST_KERNELS]


def _most_first(nanoseconds: Counter[str], counts: Counter[str]) -> list[KernelTime]:
    return [
        KernelTime(name=name, seconds=taken / 1e9, count=counts[name]) for name, taken in nanoseconds.most_common()
    ]


# ---- the critical path

HOST_WORK = "the host, launching"
"""With the Python between its launches."""


class _Spans:
    """Work of the streams, or of the host, in the order of their ends, for earlier and earlier times."""

    def __init__(self, spans: Array) -> None:
        ordered = spans[np.argsort(spans["end"], kind="stable")]
        self.begins, self.ends = ordered["begin"].tolist(), ordered["end"].tolist()
        self.kinds, self.names = ordered["kind"].tolist(), ordered["name"].tolist()
        self._place = len(self.ends)

    def last_until(self, time: int) -> int | None:
        """The place of the last that has ended by then."""
        while self._place and self.ends[self._place - 1] > time:
            self._place -= 1
        return self._place - 1 if self._place else None

    def that_ended_at(self, time: int) -> int | None:
        """The place of one that ended then."""
        place = self.last_until(time)
        return None if place is None or self.ends[place] < time else place


def critical_path(spans: Array, names: tuple[str, ...], begin: int, end: int) -> list[KernelTime]:
    """The kinds of work on the path from `begin` to `end`, ns, those that take most first.

    Work of a stream that begins as other work ends waited for it; what begins as none does waited for the
    host, which had gone on by itself since it last waited: back to there the path is the host's.
    """
    lasting = spans[(spans["end"] > spans["begin"]) & (spans["end"] > begin) & (spans["begin"] < end)]
    of_host = lasting["stream"] == HOST_STREAM
    device, host = _Spans(lasting[~of_host]), _Spans(lasting[of_host])
    taken: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    at, is_on_host = end, False
    while at > begin:
        awaited, own = device.that_ended_at(at), host.that_ended_at(at)
        has_waited = own is not None and host.kinds[own] == WorkKind.WAITING
        if awaited is not None and (has_waited or not is_on_host):
            what, start = names[device.names[awaited]].partition(".")[0], device.begins[awaited]
            if device.kinds[awaited] == WorkKind.MEETING:
                what = f"other ranks, for {what}"
            is_on_host = False
        elif own is not None and not has_waited:
            what, start = names[host.names[own]].partition(".")[0], host.begins[own]
            is_on_host = True
        else:
            last = host.last_until(at - 1)
            what, start = HOST_WORK, begin if last is None else host.ends[last]
            is_on_host = True
        start = max(start, begin)
        taken[what] += at - start
        counts[what] += 1
        at = start
    return _most_first(taken, counts)
