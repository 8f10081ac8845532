"""Where the time of a step goes, from what the streams and the host did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from zerokit.hardware.gpus import Gpu
from zerokit.hardware.prices.prices import Prices, Spread
from zerokit.rehearsal.native.clock import HOST, WorkKind
from zerokit.rehearsal.recording import Array, Recording
from zerokit.rehearsal.report import KernelTime, StepTime, TimeBreakdown, TimeReport

MOST_KERNELS = 10
_MUCH_LAUNCHING = 0.2
"""Of a step, from which on what is not counted of the host decides how long it is."""
_PARTS = {
    WorkKind.KERNEL: "compute",
    WorkKind.COLLECTIVE: "communication",
    WorkKind.COPY: "copies",
    WorkKind.OPTIMIZER: "host_optimizer",
}
"""What a moment of a step is counted as: the first of these that goes on then, "launch" if none does."""


def time_of(recording: Recording, prices: Prices) -> TimeReport | None:
    """The times of the steps; None if no step was made."""
    ends: Sequence[int] = recording.meta.get("ends_of_steps") or []
    if not ends:
        return None
    spans = recording.spans
    steps = []
    begin = _first_step_begins(spans, ends[0])
    for number, end in enumerate(ends, start=1):
        steps.append(
            StepTime(step=number, seconds=(end - begin) / 1e9, breakdown=breakdown(spans, begin, end))
        )
        begin = end
    mark = recording.last_mark
    last = steps[min(mark.step if mark else len(steps), len(steps)) - 1]
    begin, end = (
        (ends[last.step - 2] if last.step > 1 else ends[0] - round(last.seconds * 1e9)),
        ends[last.step - 1],
    )
    peak = _peak_flops(prices.gpu)
    low, high = _range(last.breakdown, prices)
    flops, model_flops = recording.flops[last.step - 1], recording.meta["model_flops"][last.step - 1]
    of_steps: Sequence[int | None] = recording.meta.get("tokens_of_steps") or []
    tokens = of_steps[last.step - 1] if last.step <= len(of_steps) else None
    return TimeReport(
        step_seconds=last.seconds,
        low_seconds=low,
        high_seconds=high,
        step=last.step,
        breakdown=last.breakdown,
        tokens_per_second=None if tokens is None or not last.seconds else tokens / last.seconds,
        mfu=_share(model_flops, peak, last.seconds),
        hfu=_share(flops, peak, last.seconds),
        peak_flops=peak,
        steps=steps,
        kernels=_kernels(recording, begin, end),
    )


def doubts(time: TimeReport) -> list[str]:
    """What a reader is to know of the times before trusting them."""
    if time.breakdown.launch < _MUCH_LAUNCHING * time.step_seconds:
        return []
    return [
        f"more than {_MUCH_LAUNCHING:.0%} of the step is launching kernels, of which what Python and hooks "
        "cost is not counted: the real step may take several times as long, beyond the range told. Larger "
        "micro-batches are told more truly"
    ]


def _range(parts: TimeBreakdown, prices: Prices) -> tuple[float, float]:
    """The step's time if all prices are as low, or as high, as they may be."""
    spreads: dict[str, Spread] = {
        "compute": prices.spread("matmul"),
        "communication": prices.spread("collective"),
        "copies": prices.spread("copy"),
        "host_optimizer": prices.spread("host_optimizer"),
        "launch": prices.launch_spread,
    }
    seconds = parts.model_dump()
    low = sum(seconds[name] * spread.low for name, spread in spreads.items())
    return low, sum(seconds[name] * spread.high for name, spread in spreads.items())


def _share(flops: float, peak: float | None, seconds: float) -> float | None:
    return flops / (peak * seconds) if peak and seconds else None


def _peak_flops(gpu: Gpu) -> float | None:
    """Dense, in 16 bits."""
    rate = gpu.tflops.get("bf16", gpu.tflops.get("fp16"))
    return None if rate is None else rate * 1e12


def _first_step_begins(spans: Array, end: int) -> int:
    """When the first work after the start was submitted: what comes before step 1 has the phase init."""
    from zerokit.reporting.phases import RUN_PHASES

    later = spans[(spans["phase"] != RUN_PHASES.index("init")) & (spans["stream"] != HOST)]
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
    inside = spans[(spans["begin"] >= begin) & (spans["begin"] < end) & (spans["stream"] != HOST)]
    seconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name in np.unique(inside["name"]).tolist():
        own = inside[inside["name"] == name]
        kind = recording.ops[name].partition(".")[0]  # whichever overload
        seconds[kind] += int((own["end"] - own["begin"]).sum())
        counts[kind] += len(own)
    return [
        KernelTime(name=kind, seconds=taken / 1e9, count=counts[kind])
        for kind, taken in seconds.most_common(MOST_KERNELS)
    ]
