"""Random programs of streams, kernels, events and waits, on the virtual device and on another simulation.

`python -m tests.validation.rehearsal.clock_programs NUMBER SLOWER` tries so many, with kernels that take
SLOWER times as long beside collectives, and prints how many agreed; a program that does not is shown. With
CUDA_LAUNCH_BLOCKING=1 the host waits for each kernel. The
simulation goes tick by tick and shares nothing with native/clock.cpp but what the two are about.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.validation.rehearsal.fixed_costs import FixedCosts

STREAMS, EVENTS = 4, 3
READ = 100
"""Nanoseconds that pass when somebody asks whether an event has happened."""

Operation = tuple[Any, ...]
Program = list[Operation]


def programs() -> st.SearchStrategy[Program]:
    stream, event = st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)
    duration = st.integers(0, 60)
    return st.lists(
        st.one_of(
            st.tuples(st.just("kernel"), stream, duration),
            st.tuples(st.just("kernel"), stream, duration),
            st.tuples(st.just("collective"), stream, duration),
            st.tuples(st.just("record"), stream, event),
            st.tuples(st.just("wait_event"), stream, event),
            st.tuples(st.just("wait_stream"), stream, stream),
            st.tuples(st.just("host"), duration),
            st.tuples(st.just("query"), event),
            st.tuples(st.just("synchronize_event"), event),
            st.tuples(st.just("synchronize_stream"), stream),
            st.tuples(st.just("synchronize")),
        ),
        min_size=5,
        max_size=60,
    )


@dataclass
class Seen:
    """What a program shows of time."""

    host: list[int] = field(default_factory=list)
    """After each operation."""
    queries: list[bool] = field(default_factory=list)
    events: list[int | None] = field(default_factory=list)
    """When each event happened last, from the program's start."""
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    """Stream, begin and end of all work."""


# ---- the virtual device, as a script has it


class OnDevice:
    def __init__(self, backend: Any) -> None:
        import torch

        self.clock, self.backend = backend.clock, backend
        torch.cuda.synchronize()
        self.start = self.clock.now
        self.before = len(self.spans_so_far())
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(STREAMS - 1))]
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(EVENTS)]
        self.seen = Seen()

    def spans_so_far(self) -> list[Any]:
        from zerokit.rehearsal.recording import SPAN

        return [span for span in self.backend.spans(SPAN).tolist() if span[4] >= 0]

    def run(self, program: Program) -> Seen:
        import torch

        for kind, *what in program:
            if kind in ("kernel", "collective"):
                self.submit(kind, self.streams[what[0]], what[1])
            elif kind == "record":
                self.streams[what[0]].record_event(self.events[what[1]])
            elif kind == "wait_event":
                self.streams[what[0]].wait_event(self.events[what[1]])
            elif kind == "wait_stream":
                self.streams[what[0]].wait_stream(self.streams[what[1]])
            elif kind == "host":
                self.clock.advance(what[0])
            elif kind == "query":
                self.seen.queries.append(self.events[what[0]].query())
            elif kind == "synchronize_event":
                self.events[what[0]].synchronize()
            elif kind == "synchronize_stream":
                self.streams[what[0]].synchronize()
            else:
                torch.cuda.synchronize()
            self.seen.host.append(self.clock.now - self.start)
        torch.cuda.synchronize()
        for event in self.events:
            recorded = event.recorded
            self.seen.events.append(None if recorded is None else self.clock.time_of(recorded) - self.start)
        numbers = {stream.stream_id: place for place, stream in enumerate(self.streams)}
        for begin, end, _, _, stream, *_ in self.spans_so_far()[self.before :]:
            self.seen.spans.append((numbers[stream], begin - self.start, end - self.start))
        self.seen.spans.sort()
        return self.seen

    def submit(self, kind: str, stream: Any, duration: int) -> None:
        import torch

        from zerokit.rehearsal.native.clock import WorkKind

        with torch.cuda.stream(stream):
            current = self.backend.current_stream
            self.clock.submit(current, WorkKind[kind.upper()], kind, duration)


# ---- the simulation, nanosecond by nanosecond


@dataclass
class Item:
    kind: str
    submitted: int
    left: int = 0
    event: int = -1
    began: int | None = None


class InTicks:
    def __init__(self, slower: int, is_blocking: bool) -> None:
        self.slower = slower
        self.is_blocking = is_blocking
        self.host = self.device = 0
        self.queues: list[deque[Item]] = [deque() for _ in range(STREAMS)]
        self.happened: list[int | None] = []
        self.latest: list[int | None] = [None] * EVENTS
        self.seen = Seen()

    def run(self, program: Program) -> Seen:
        for kind, *what in program:
            if kind in ("kernel", "collective"):
                self.queues[what[0]].append(Item(kind, self.host, what[1] * self.slower))
                if self.is_blocking and kind == "kernel":
                    self.synchronize(self.record(what[0]))
            elif kind == "record":
                self.latest[what[1]] = self.record(what[0])
            elif kind == "wait_event":
                self.wait(what[0], self.latest[what[1]])
            elif kind == "wait_stream":
                self.wait(what[0], self.record(what[1]))
            elif kind == "host":
                self.host += what[0]
            elif kind == "query":
                self.seen.queries.append(self.query(self.latest[what[0]]))
            elif kind == "synchronize_event":
                self.synchronize(self.latest[what[0]])
            elif kind == "synchronize_stream":
                self.synchronize(self.record(what[0]))
            else:
                self.synchronize_all()
            self.seen.host.append(self.host)
        self.synchronize_all()
        self.seen.events = [None if event is None else self.happened[event] for event in self.latest]
        self.seen.spans.sort()
        return self.seen

    def record(self, stream: int) -> int:
        self.happened.append(None)
        self.queues[stream].append(Item("record", self.host, event=len(self.happened) - 1))
        return len(self.happened) - 1

    def wait(self, stream: int, event: int | None) -> None:
        if event is not None:
            self.queues[stream].append(Item("wait", self.host, event=event))

    def query(self, event: int | None) -> bool:
        if event is None:
            return True
        self.host += READ
        while self.device < self.host:
            self.tick()
        self.settle()
        return self.happened[event] is not None

    def synchronize(self, event: int | None) -> None:
        if event is None:
            return
        self.settle()
        while self.happened[event] is None:
            self.tick()
        self.host = max(self.host, self.device if self.happened[event] == self.device else 0)

    def synchronize_all(self) -> None:
        for event in [self.record(stream) for stream in range(STREAMS)]:
            self.synchronize(event)

    def settle(self) -> None:
        """Let all happen that can at this moment."""
        while sum(self.settled(place) for place in range(STREAMS)):
            pass

    def settled(self, place: int) -> bool:
        queue = self.queues[place]
        if not queue or queue[0].submitted > self.device:
            return False
        first = queue[0]
        if first.kind == "record":
            self.happened[first.event] = self.device
        elif first.kind == "wait":
            if self.happened[first.event] is None:
                return False
        elif first.began is None:
            first.began = self.device
            return True
        elif first.left > 0:
            return False
        else:
            self.seen.spans.append((place, first.began, self.device))
        queue.popleft()
        return True

    def tick(self) -> None:
        self.settle()
        running = [queue[0] for queue in self.queues if queue and queue[0].began is not None]
        beside = any(item.kind == "collective" for item in running)
        for item in running:
            item.left -= 1 if beside and item.kind == "kernel" else self.slower
        self.device += 1
        self.settle()


def main() -> None:
    """Try as many programs as the first argument says, with the slowing that the second gives."""
    from zerokit.rehearsal import virtual_cluster

    number, slower = int(sys.argv[1]), int(sys.argv[2])
    is_blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
    tried = waits = slowed = 0

    costs = FixedCosts(beside_collective=float(slower))
    # Hypothesis looks at the clock, too, which would take time of the programs.
    with virtual_cluster(8, costs=costs, real_time=True) as rank:

        @examples(number, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(programs())
        def agree(program: Program) -> None:
            nonlocal tried, waits, slowed
            expected = InTicks(slower, is_blocking).run(program)
            assert OnDevice(rank.backend).run(program) == expected
            tried += 1
            waits += any(kind.startswith("wait") for kind, *_ in program)
            slowed += sum(end - begin for _, begin, end in expected.spans) > sum(
                what[1] for kind, *what in program if kind in ("kernel", "collective")
            )

        agree()
    with contextlib.suppress(BrokenPipeError):
        print(tried, waits, slowed, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
