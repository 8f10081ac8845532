"""Random programs of three ranks that wait for each other, played by the library and by another simulation.

`python -m tests.validation.rehearsal.together_programs NUMBER SLOWER` tries so many, with kernels that take
SLOWER times as long beside collectives, and prints how many agreed, in how many a rank waited for another,
and how many ended with ranks that wait for each other. The simulation goes tick by tick, and has hosts do
what they do when they come to it; what a host does ahead of its device is not known there.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter, deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from tests.examples import examples
from zerokit.rehearsal.native import backend as native
from zerokit.rehearsal.native.clock import HOST_STREAM, SIZE_OF_ACT, Clock, WorkKind
from zerokit.rehearsal.native.together import RankActs, play

RANKS, STREAMS, EVENTS, MEETINGS = 3, 3, 3, 2
_SUBMIT, _RECORD, _WAIT, _SYNCHRONIZE, _WORK = range(5)
_ACT = struct.Struct("<qqqiiBBxxiiBxxx")

Operation = tuple[Any, ...]
Program = list[Operation]
Spans = list[tuple[int, int, int, int]]
"""Stream, kind, begin and end."""


def programs() -> st.SearchStrategy[list[Program]]:
    """Of all ranks. The n-th ``meet`` of one kind is the same on all ranks that have so many."""
    stream, event, duration = st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1), st.integers(1, 12)
    return st.lists(
        st.lists(
            st.one_of(
                st.tuples(st.just("kernel"), stream, duration),
                st.tuples(st.just("meet"), stream, duration, st.integers(0, MEETINGS - 1)),
                st.tuples(st.just("record"), stream, event),
                st.tuples(st.just("wait"), stream, event),
                st.tuples(st.just("host"), duration),
                st.tuples(st.just("work"), duration),
                st.tuples(st.just("synchronize"), event),
            ),
            min_size=3,
            max_size=25,
        ),
        min_size=RANKS,
        max_size=RANKS,
    )


CROSSED: list[Program] = [
    [("meet", 0, 1, 0), ("meet", 0, 1, 1), ("host", 1)],
    [("meet", 0, 1, 1), ("meet", 0, 1, 0), ("host", 1)],
    [("host", 1)],
]
"""Two ranks that each begin with the other's second meeting: they never come to their own second."""


def meeting_of(programs: Sequence[Program]) -> tuple[list[list[int]], list[int]]:
    """The number of each rank's meetings, and how many ranks come to each."""
    counts = [Counter(what[3] for what in program if what[0] == "meet") for program in programs]
    numbers, sizes = [], [0] * (MEETINGS * 30)
    for program in programs:
        seen: Counter[int] = Counter()
        own = []
        for what in program:
            if what[0] == "meet":
                own.append(what[3] * 30 + seen[what[3]])
                seen[what[3]] += 1
        numbers.append(own)
    for kind in range(MEETINGS):
        for call in range(30):
            sizes[kind * 30 + call] = sum(count[kind] > call for count in counts)
    return numbers, sizes


# ---- the library


def acts_of(program: Program) -> bytes:
    """What `Clock.acts` has of a host that does the same; each rank's meetings are numbered as they come."""
    acts, before, events, meetings = [], 0, 0, 0
    latest: list[int | None] = [None] * EVENTS

    def act(kind: int, stream: int = HOST_STREAM, event: int = -1, work: tuple[int, int, int] = (0, 0, -1)) -> None:
        nonlocal before
        duration, of_kind, meeting = work
        acts.append(_ACT.pack(before, event, duration, 0, 0, 0, of_kind, meeting, stream, kind))
        before = 0

    for kind, *what in program:
        if kind == "kernel":
            act(_SUBMIT, what[0], work=(what[1], WorkKind.KERNEL, -1))
        elif kind == "meet":
            act(_SUBMIT, what[0], work=(what[1], WorkKind.COLLECTIVE, meetings))
            meetings += 1
        elif kind == "record":
            act(_RECORD, what[0])
            latest[what[1]] = events
            events += 1
        elif kind == "wait" and latest[what[1]] is not None:
            act(_WAIT, what[0], cast("int", latest[what[1]]))
        elif kind == "host":
            before += what[0]
        elif kind == "work":
            act(_WORK, work=(what[0], WorkKind.OPTIMIZER, -1))
        elif kind == "synchronize" and latest[what[0]] is not None:
            act(_SYNCHRONIZE, event=cast("int", latest[what[0]]), work=(0, WorkKind.WAITING, -1))
    return b"".join(acts)


def by_library(clock: Clock, programs: list[Program]) -> tuple[list[Spans], int]:
    """What each rank did, and how many meetings were given up."""
    numbers, sizes = meeting_of(programs)
    ranks = [RankActs(acts_of(program), own) for program, own in zip(programs, numbers, strict=True)]
    played = play(ranks, sizes, clock.beside_collective / 1000)
    spans = [sorted((span[4], span[5], span[0], span[1]) for span in one.spans.tolist()) for one in played]
    return spans, played[0].given_up


# ---- the simulation, nanosecond by nanosecond


class InTicks:
    """All ranks; `is_stuck` if they come to wait for each other."""

    def __init__(self, programs: list[Program], slower: int) -> None:
        self.slower = slower
        self.numbers, self.missing = meeting_of(programs)
        self.now = 0
        self.ranks = [
            SimpleNamespace(
                todo=deque(program),
                host=0,
                begun=0,
                waits=None,
                meets=deque(numbers),
                happened=[],
                latest=[None] * EVENTS,
                spans=[],
                queues=[deque() for _ in range(STREAMS)],
            )
            for program, numbers in zip(programs, self.numbers, strict=True)
        ]
        self.is_stuck = False

    def run(self) -> list[Spans]:
        while not self.is_stuck and self.is_left():
            while sum(self.hosted(one) + self.settled(one) for one in self.ranks):
                pass
            running = any(queue and queue[0].began is not None for one in self.ranks for queue in one.queues)
            is_idle = not running and all(one.waits is not None or not one.todo for one in self.ranks)
            self.is_stuck = is_idle and self.is_left()
            for one in self.ranks:
                items = [queue[0] for queue in one.queues if queue and queue[0].began is not None]
                beside = any(item.kind == WorkKind.COLLECTIVE for item in items)
                for item in items:
                    item.left -= 1 if beside and item.kind == WorkKind.KERNEL else self.slower
            self.now += 1
        return [sorted(one.spans) for one in self.ranks]

    def is_left(self) -> bool:
        """Whether anything is still to be done."""
        return any(one.todo or one.waits is not None or any(one.queues) for one in self.ranks)

    def hosted(self, one: Any) -> int:
        """Have a host do what it comes to now."""
        done = 0
        if one.waits is not None:
            if one.happened[one.waits] is None:
                return 0
            if self.now > one.begun:
                one.spans.append((HOST_STREAM, WorkKind.WAITING, one.begun, self.now))
            one.host, one.waits, done = self.now, None, 1
        while one.todo and one.host <= self.now and one.waits is None:
            done += 1
            kind, *what = one.todo.popleft()
            event = one.latest[what[-1]] if kind in ("wait", "synchronize") else None
            if kind in ("kernel", "meet"):
                is_kernel = kind == "kernel"
                one.queues[what[0]].append(
                    SimpleNamespace(
                        kind=WorkKind.KERNEL if is_kernel else WorkKind.COLLECTIVE,
                        left=what[1] * self.slower,
                        meets=None if is_kernel else one.meets.popleft(),
                        came=None,
                        began=None,
                    )
                )
            elif kind == "record":
                one.happened.append(None)
                one.latest[what[1]] = len(one.happened) - 1
                one.queues[what[0]].append(SimpleNamespace(kind="record", event=one.latest[what[1]], began=None))
            elif kind == "wait" and event is not None:
                one.queues[what[0]].append(SimpleNamespace(kind="wait", event=event, began=None))
            elif kind == "host":
                one.host += what[0]
            elif kind == "work":
                one.spans.append((HOST_STREAM, WorkKind.OPTIMIZER, one.host, one.host + what[0]))
                one.host += what[0]
            elif kind == "synchronize" and event is not None and one.happened[event] is None:
                one.waits, one.begun = event, self.now
        return done

    def settled(self, one: Any) -> int:
        """Have streams do what they can at this moment."""
        done = 0
        for place, queue in enumerate(one.queues):
            while queue:
                had_begun = queue[0].began is not None
                if not self.passes(one, place, queue[0]):
                    done += not had_begun and queue[0].began is not None  # and others may, too
                    break
                queue.popleft()
                done += 1
        return done

    def passes(self, one: Any, place: int, item: Any) -> bool:
        if item.kind == "record":
            one.happened[item.event] = self.now
            return True
        if item.kind == "wait":
            return one.happened[item.event] is not None
        if item.began is None:
            if item.meets is not None and item.came is None:
                item.came = self.now
                self.missing[item.meets] -= 1
            if item.meets is not None and self.missing[item.meets] > 0:
                return False
            if item.meets is not None and item.came < self.now:
                one.spans.append((place, WorkKind.MEETING, item.came, self.now))
            item.began = self.now
        if item.left > 0:
            return False
        one.spans.append((place, item.kind, item.began, self.now))
        return True


def main() -> None:
    """Try as many programs as the first argument says, with the slowing that the second gives."""
    number, slower = int(sys.argv[1]), int(sys.argv[2])
    assert _ACT.size == SIZE_OF_ACT
    clock = native.load().start_clock(float(slower), can_block=False)
    tried = waited = stuck = 0

    @example(CROSSED)
    @examples(number, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(programs())
    def agree(programs: list[Program]) -> None:
        nonlocal tried, waited, stuck
        simulation = InTicks(programs, slower)
        expected = simulation.run()
        spans, given_up = by_library(clock, programs)
        assert (given_up > 0) == simulation.is_stuck
        if simulation.is_stuck:
            stuck += 1
        else:
            assert spans == expected
        tried += 1
        waited += any(kind == WorkKind.MEETING for of_rank in expected for _, kind, *_ in of_rank)

    agree()
    print(tried, waited, stuck, flush=True)


if __name__ == "__main__":
    main()
