"""The trace of a rehearsal: memory, steps, phases, collectives, and a row for the work of each stream.

Time is virtual time where that is rehearsed. Else it is the CPU time of the rehearsal, which orders events.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from zerokit.rehearsal.native.clock import FIRST_COMMUNICATOR, FIRST_DRIVE, HOST_STREAM, WorkKind
from zerokit.rehearsal.recording import CATEGORY_CODES, Array, Recording, Space
from zerokit.reporting import traces
from zerokit.reporting.phases import RUN_PHASES
from zerokit.reporting.traces import Entry

_MOST_SAMPLES = 40_000
"""Of each memory. A sample takes some 230 bytes, so that all stay below about 25 MB."""
_MOST_COLLECTIVES = 50_000
_COUNTERS = {
    Space.DEVICE: "device memory (bytes)",
    Space.PAGEABLE_HOST: "pageable host memory (bytes)",
    Space.PINNED_HOST: "pinned host memory (bytes)",
}
_STEPS, _PHASES, _COLLECTIVES = 1, 2, 3
_FIRST_STREAM = 10
_WAITS = {WorkKind.WAITING: "waits ({})", WorkKind.MEETING: "waits for other ranks ({})"}
_THREADS = {_STEPS: "optimizer steps", _PHASES: "phases", _COLLECTIVES: "collectives"}


def write_trace(recording: Recording, path: str | Path) -> None:
    """Write the trace to `path`, compressed if the name ends in ``.gz``.

    Raises:
        ZerokitError: the file cannot be written.
    """
    traces.write_trace(path, _entries(recording))


def _entries(recording: Recording) -> Iterator[Entry]:
    axis = "virtual time" if len(recording.spans) else "CPU time, not GPU time"
    yield traces.process_name(f"rank {recording.facts.rank}, rehearsed: {axis}")
    for thread, name in _THREADS.items():
        yield traces.thread_name(thread, name)
    times = _microseconds(recording)
    if not len(times):
        return
    yield from _phase_bars(recording, times)
    yield from _step_bars(recording, times)
    yield from _collectives(recording, times)
    yield from _work(recording)
    for space, name in _COUNTERS.items():
        yield from _counter(recording, times, space, name)


def _microseconds(recording: Recording) -> Array:
    """The time of each event since the first, in µs; never backwards, whatever the clock did."""
    times = recording.events["time_ns"]
    return np.maximum.accumulate(times - times[0]) / 1000 if len(times) else times


def _phase_bars(recording: Recording, times: Array) -> Iterator[Entry]:
    for begin, end, name in phase_runs(recording):
        yield traces.duration_event(_PHASES, name, times[begin], times[min(end, len(times) - 1)])


def _step_bars(recording: Recording, times: Array) -> Iterator[Entry]:
    begin = 0
    for mark in recording.step_marks:
        end = min(mark.event, len(times) - 1)
        name = f"step {mark.step}" if mark.step > 1 else "start and step 1"
        yield traces.duration_event(_STEPS, name, times[begin], times[end])
        begin = end


def _collectives(recording: Recording, times: Array) -> Iterator[Entry]:
    calls = recording.collectives[:_MOST_COLLECTIVES]
    for call in calls:
        time = times[min(call.event, len(times) - 1)]
        phase = RUN_PHASES[call.phase]
        facts = {"bytes": call.bytes, "group_size": call.group_size, "phase": phase, "step": call.step}
        yield traces.instant_event(_COLLECTIVES, call.name, time, facts)
    if len(calls) < len(recording.collectives):
        left_out = len(recording.collectives) - len(calls)
        yield traces.thread_name(_COLLECTIVES, f"collectives (the last {left_out:,} are left out)")


def _work(recording: Recording) -> Iterator[Entry]:
    """What the host and each stream did, a row each."""
    start = int(recording.events["time_ns"][0])
    for stream in np.unique(recording.spans["stream"]).tolist():
        thread = _FIRST_STREAM + stream
        yield traces.thread_name(thread, stream_words(stream))
        for span in recording.spans[recording.spans["stream"] == stream].tolist():
            begin, end, name, _, _, kind, _ = span
            operator = recording.ops[name] if name >= 0 else ""
            words = _WAITS.get(kind, "{}").format(operator).removeprefix("aten::")
            yield traces.duration_event(thread, words, (begin - start) / 1000, (end - start) / 1000)


def stream_words(stream: int) -> str:
    """What a stream is called."""
    if stream >= FIRST_COMMUNICATOR:
        return f"communicator {stream - FIRST_COMMUNICATOR}"
    if stream >= FIRST_DRIVE:
        return f"drives {stream - FIRST_DRIVE}"
    return "host" if stream == HOST_STREAM else "default stream" if stream == 0 else f"stream {stream}"


def _counter(recording: Recording, times: Array, space: Space, name: str) -> Iterator[Entry]:
    total = recording.running_bytes(space)
    changes = np.flatnonzero(recording.events["space"] == space)
    if not len(changes):
        return
    places = changes[thinned(total[changes], _MOST_SAMPLES)]
    held: dict[str, list[int]] = {
        category: running[places].tolist()
        for code, category in enumerate(CATEGORY_CODES)
        if (running := recording.running_bytes(space, category=code)).any()
    }
    for number, place in enumerate(places):
        values = {category: values[number] for category, values in held.items()}
        yield traces.counter(name, times[place], values)


def phase_runs(recording: Recording) -> list[tuple[int, int, str]]:
    """Stretches of events in one phase: first event, the event after the last, name."""
    phases = recording.events["phase"]
    if not len(phases):
        return []
    edges = [0, *(np.flatnonzero(np.diff(phases)) + 1).tolist(), len(phases)]
    return [(begin, end, RUN_PHASES[phases[begin]]) for begin, end in pairwise(edges)]


def thinned(total: Array, most: int) -> Array:
    """Places in `total` to draw, at most about `most`: of each stretch the highest and the lowest.

    The overall peak is always among them.
    """
    if len(total) <= most:
        return np.arange(len(total))
    edges = np.linspace(0, len(total), max(1, most // 2) + 1, dtype=np.int64)
    chosen = [
        begin + place
        for begin, end in pairwise(edges)
        if end > begin
        for place in (total[begin:end].argmax(), total[begin:end].argmin())
    ]
    return np.unique([*chosen, 0, len(total) - 1])
