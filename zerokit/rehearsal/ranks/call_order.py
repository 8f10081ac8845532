"""The order in which ranks call collectives, which has to be the same on all ranks of a group."""

from __future__ import annotations

import functools
import json
import sys
import zlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from zerokit.rehearsal.call_sites import folder_of, is_of_script, is_own_code, short_path
from zerokit.rehearsal.ranks.journal import Journal
from zerokit.rehearsal.ranks.roles import Ranks
from zerokit.rehearsal.ranks.skipped_modules import MODULES, skipped_module

CALLS = "calls"
"""The entry of all collectives of a rank, in their order."""
STEPS_DONE, SCRIPT_ENDED, FAILED = "steps done", "script ended", "failed"
"""How a rank ends."""


_Call = tuple[str, str, int, bool]
"""The collective with its size, file and line of the script, and whether the script goes on meanwhile."""


class CallOrder:
    """The collectives of one rank."""

    def __init__(self) -> None:
        self._places: dict[_Call, int] = {}
        """Collectives and their lines, numbered."""
        self._order: dict[str, tuple[Ranks, list[int]]] = {}
        """The ranks of a group, and its calls by number."""

    def add(self, group: str, ranks: Ranks, operation: str, *, is_async: bool) -> None:
        """Record a call; arguments as of :meth:`Exchange.share`, `group` as of :func:`group_name`."""
        place = self._places.setdefault((operation, *_script_place(), is_async), len(self._places))
        self._order.setdefault(group, (ranks, []))[1].append(place)

    def to_json(self, steps: int) -> bytes:
        """For the entry :data:`CALLS`, at the end of so many optimizer steps."""
        return json.dumps([list(self._places), self._order, steps]).encode()


@functools.cache
def group_name(ranks: Ranks, number: int) -> str:
    """The name of a group, the same on all its ranks; `number` as of :meth:`Exchange.register_group`."""
    return f"group-{len(ranks)}-{ranks[0]}-{zlib.crc32(repr((ranks, number)).encode()):08x}"


def unequal_calls(journals: Sequence[tuple[int, Journal]]) -> list[str]:
    """Where ranks that have ended did not make the same calls on their group, in the same order."""
    ranks: list[_Rank] = []
    members: dict[str, list[int]] = {}
    for rank, journal in journals:
        if CALLS in journal.entries:
            calls, groups, steps = json.loads(journal.payload(journal.entries[CALLS]))
            members |= {group: of for group, (of, _) in groups.items()}
            order = {group: [calls[number] for number in numbers] for group, (_, numbers) in groups.items()}
            modules = journal.payload(journal.entries[MODULES]) if MODULES in journal.entries else b""
            ranks.append(_Rank(rank, order, journal.entries["ends"].words[0], steps, modules))
    found: list[str] = []
    for group, of in members.items():
        first, *others = [rank for rank in ranks if rank.number in of]
        found += filter(None, (_difference(group, first, other) for other in others))
    return list(dict.fromkeys(found))


class _Rank(NamedTuple):
    number: int
    calls: dict[str, list[_Call]]
    """By group."""
    ending: str
    steps: int
    modules: bytes
    """Its entry :data:`MODULES`; empty if it is not known."""


def _difference(group: str, first: _Rank, other: _Rank) -> str | None:
    """The first call in which they differ, if the cluster would wait there."""
    pairs = zip_longest(first.calls.get(group, ()), other.calls.get(group, ()))
    its, own = next((pair for pair in pairs if _operation(pair[0]) != _operation(pair[1])), (None, None))
    surplus = its or own
    if surplus is None:
        mixed = _skipped(first, other, is_stuck=False)
        return f"ZeRO-3 would take the parameters of one module for those of another: {mixed}" if mixed else None
    if its is None or own is None:
        lacking = first if its is None else other
        # In a step ranks wait for each other, except for asynchronous calls.
        same_step = (first.ending, first.steps) == (other.ending, other.steps) and not surplus[3]
        if lacking.ending != SCRIPT_ENDED and not (lacking.ending == STEPS_DONE and same_step):
            return None
    skipped = _skipped(first, other)
    return (
        f"the cluster would wait for ever: rank {first.number} calls {_described(its)}, where "
        f"rank {other.number}, of the same group, calls {_described(own)}" + (f": {skipped}" if skipped else "")
    )


def _skipped(first: _Rank, other: _Rank, *, is_stuck: bool = True) -> str:
    pair = (first.number, first.modules), (other.number, other.modules)
    return skipped_module(*pair, is_stuck=is_stuck)


def _operation(call: _Call | None) -> str | None:
    return None if call is None else call[0]


def _described(call: _Call | None) -> str:
    return "nothing" if call is None else f"{call[0]} at {short_path(call[1])}:{call[2]}"


def _script_place() -> tuple[str, int]:
    """File and line of the user's script, or else of torch's caller; fast: each collective needs it."""
    frame = sys._getframe(1)
    place = None
    while frame.f_back is not None:
        frame = frame.f_back
        path = frame.f_code.co_filename
        if is_of_script(path):
            return path, frame.f_lineno
        if place is None and not is_own_code(path) and not path.startswith(folder_of("torch")):
            place = path, frame.f_lineno
    return place or ("an unknown file", 0)
