"""The last requested step in few numbers: the memory over it, and what each stream did."""

from __future__ import annotations

import numpy as np

from zerokit.rehearsal.native.clock import HOST_STREAM, WorkKind
from zerokit.rehearsal.recording import CATEGORY_CODES, Array, Recording, Space
from zerokit.rehearsal.report.report import MemoryCurve, PhaseStretch, StreamWork
from zerokit.rehearsal.report.trace import phase_runs, stream_words, thinned

MOST_POINTS = 200
MOST_SPANS = 300


def memory_curve(recording: Recording) -> MemoryCurve | None:
    """The memory of the device over the last requested step, at most 200 points; None without a step.

    The peak of the step is among the points. Positions are seconds of virtual time since the step began, or
    numbers of events where only memory is rehearsed.
    """
    last = recording.last_mark
    if last is None:
        return None
    begin = max((mark.event for mark in recording.step_marks if mark.step < last.step), default=0)
    end = min(last.event, len(recording.events))
    if end <= begin:
        return None
    is_timed = bool(len(recording.spans))
    axis = np.arange(len(recording.events) + 1, dtype=float)
    if is_timed:
        times = np.maximum.accumulate(recording.events["time_ns"]) / 1e9
        axis = np.append(times, times[-1])
    places = begin + thinned(recording.running_bytes(Space.DEVICE)[begin:end], MOST_POINTS - 2)
    stretches = [
        PhaseStretch(phase=name, begin=_rounded(axis, first, begin), end=_rounded(axis, after, begin))
        for start, stop, name in phase_runs(recording)
        if (first := max(start, begin)) < (after := min(stop, end))
    ]
    return MemoryCurve(
        step=last.step,
        unit="seconds" if is_timed else "events",
        end=_rounded(axis, end, begin),
        at=[_rounded(axis, place, begin) for place in places],
        phases=_longest(stretches),
        bytes={
            category: held[places].tolist()
            for code, category in enumerate(CATEGORY_CODES)
            if (held := recording.running_bytes(Space.DEVICE, category=code))[begin:end].any()
        },
    )


def _rounded(axis: Array, place: int, begin: int) -> float:
    return round(float(axis[place] - axis[begin]), 6)


def _longest(stretches: list[PhaseStretch]) -> list[PhaseStretch]:
    """The longest, in their order: accumulation makes many."""
    kept = sorted(stretches, key=lambda one: one.begin - one.end)[:24]
    return sorted(kept, key=lambda one: one.begin)


def stream_work(spans: Array, begin: int, end: int) -> list[StreamWork]:
    """What each stream did between two moments, at most 300 spans: close work of one kind is merged."""
    inside = spans[(spans["end"] > begin) & (spans["begin"] < end)]
    streams = sorted(set(inside["stream"].tolist()), key=lambda stream: (stream != HOST_STREAM, stream))
    parts = 1024
    while True:
        found = [
            (stream, kind, bars)
            for stream in streams
            for kind in WorkKind
            if (bars := merged(inside[(inside["stream"] == stream) & (inside["kind"] == kind)], begin, end, parts))
        ]
        if sum(len(bars) for *_, bars in found) <= MOST_SPANS or parts == 1:
            break
        parts //= 2
    return [
        StreamWork(
            stream=stream_words(stream),
            kind=kind.name.lower(),
            begin=[round((first - begin) / 1e9, 6) for first, _ in bars],
            end=[round((last - begin) / 1e9, 6) for _, last in bars],
        )
        for stream, kind, bars in found
    ]


def merged(spans: Array, begin: int, end: int, parts: int) -> list[tuple[int, int]]:
    """First and last moment of work, clipped; work that is closer than the `parts`-th of the time is one."""
    gap = (end - begin) / parts
    bars: list[list[int]] = []
    for first, last in zip(spans["begin"].tolist(), spans["end"].tolist(), strict=True):
        if bars and first - bars[-1][1] < gap:
            bars[-1][1] = max(last, bars[-1][1])
        else:
            bars.append([first, last])
    return [(max(first, begin), min(last, end)) for first, last in bars]
