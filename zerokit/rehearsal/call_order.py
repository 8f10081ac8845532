"""The order in which ranks call collectives, which has to be the same on all ranks of a group."""

from __future__ import annotations

import functools
import json
import sys
import zlib
from collections.abc import Sequence

from zerokit.rehearsal.call_sites import folder_of, is_of_script, is_own_code, short_path
from zerokit.rehearsal.journal import Journal
from zerokit.rehearsal.roles import Ranks

CALLS = "calls"
"""The entry of all collectives of a rank, in their order."""
STEPS_DONE, SCRIPT_ENDED, FAILED = "steps done", "script ended", "failed"
"""How a rank ends."""


_Call = tuple[str, str, int]
"""The collective with its size, and file and line of the script."""


class CallOrder:
    """The collectives of one rank."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, int], int] = {}
        """Collectives and their lines, numbered."""
        self._order: dict[str, list[int]] = {}

    def add(self, group: str, operation: str) -> None:
        """Take one down.

        Args:
            group: as of :func:`group_name`.
            operation: the collective and its size, the same on all ranks of the group.
        """
        place = self._places.setdefault((operation, *_script_place()), len(self._places))
        self._order.setdefault(group, []).append(place)

    def to_json(self) -> bytes:
        """For the entry :data:`CALLS`."""
        return json.dumps([list(self._places), self._order]).encode()


@functools.cache
def group_name(ranks: Ranks, number: int) -> str:
    """What a group is called on all its ranks.

    Args:
        ranks: of the group.
        number: as of :meth:`zerokit.rehearsal.exchange.Exchange.know_group`.
    """
    return f"group-{len(ranks)}-{ranks[0]}-{zlib.crc32(repr((ranks, number)).encode()):08x}"


def unequal_calls(journals: Sequence[tuple[int, Journal]]) -> list[str]:
    """Where ranks do not make the same calls on their group, in the same order.

    Args:
        journals: of ranks that have ended.
    """
    found: list[str] = []
    firsts: dict[str, tuple[int, list[_Call], bool]] = {}
    for rank, journal in journals:
        if CALLS not in journal.entries:
            continue
        places, order = json.loads(journal.payload(journal.entries[CALLS]))
        is_whole = journal.entries["ends"].words == (SCRIPT_ENDED,)
        for group, numbers in order.items():
            own_calls = [tuple(places[number]) for number in numbers]
            first, its_calls, its_is_whole = firsts.setdefault(group, (rank, own_calls, is_whole))
            pairs = enumerate(zip(its_calls, own_calls, strict=False))
            shared = min(len(its_calls), len(own_calls))
            place = next((place for place, (its, own) in pairs if its[0] != own[0]), shared)
            its_call, own_call = _call(its_calls, place), _call(own_calls, place)
            is_late = (its_call is None and its_is_whole) or (own_call is None and is_whole)
            if its_call != own_call and (is_late or (its_call and own_call)):
                found.append(
                    f"the cluster would wait for ever: rank {first} calls {its_call or 'nothing'}, where "
                    f"rank {rank}, of the same group, calls {own_call or 'nothing'}"
                )
    return found


def _call(calls: Sequence[_Call], place: int) -> str | None:
    if place >= len(calls):
        return None
    operation, path, line = calls[place]
    return f"{operation} at {short_path(path)}:{line}"


def _script_place() -> tuple[str, int]:
    """File and line of the user's script, or else of whoever calls torch; fast, as every collective asks."""
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
