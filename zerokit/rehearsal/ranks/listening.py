"""What a rank hears of those that are rehearsed beside it, and how long it waits for it.

Nobody waits for what cannot come: ranks that wait for each other, or for one whose script has ended, would
wait for ever on the cluster, and are named with their lines.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zerokit.errors import RunError
from zerokit.rehearsal.ranks.call_order import SCRIPT_ENDED
from zerokit.rehearsal.ranks.journal import Journal

_PAUSES = (0.0002, 0.001, 0.005)
"""Seconds between looks, the last one for all that follow: answers often come at once."""
_LOOKS_BEFORE_DOUBT = 20
"""After so many a rank says that it waits, and looks whether anybody waits for it."""


class _Nothing:
    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "NOTHING"  # the one of this module, wherever it is read


NOTHING = _Nothing()
"""A value that nobody can tell."""


class Awaited(NamedTuple):
    """What a rank waits for."""

    rank: int
    names: tuple[str, ...]
    """Of the entries that will do."""
    operation: str
    """What the rank that waits does, with its size."""
    line: str
    is_certain: bool
    """Whether the other rank is the one that takes part, and not one that stands for it."""
    is_async: bool = False
    """Whether the script goes on meanwhile on the cluster."""


class Listener:
    """What one rank says and hears.

    Args:
        folder: shared by the ranks of one rehearsal, and theirs alone, since pickles are read from it; None
            if this rank is rehearsed by itself.
        rank: this rank.
    """

    def __init__(self, folder: Path | None, rank: int) -> None:
        self.folder = folder
        self.rank = rank
        self._own = None if folder is None else Journal(folder, rank)
        self._journals: dict[int | str, Journal] = {}
        self.unknown = 0
        """Values that nobody could tell; this rank went on with its own."""

    @property
    def is_active(self) -> bool:
        """Whether other ranks are rehearsed beside this one."""
        return self._own is not None

    def say(self, name: str, *words: str, payload: bytes = b"") -> None:
        """Tell all others."""
        if self._own is not None:
            self._own.write(name, *words, payload=payload)

    def _journal(self, owner: int | str) -> Journal:
        assert self.folder is not None
        if owner not in self._journals:
            self._journals[owner] = Journal(self.folder, owner)
        return self._journals[owner]

    def hear(self, awaited: Awaited) -> Any:
        """Wait for what another rank tells; :data:`NOTHING` if nobody can tell it.

        Raises:
            RunError: it never does, or tells what does not fit.
        """
        journal = self._journal(awaited.rank)

        def is_decided() -> bool:
            journal.read_on()
            return not awaited.names or any(name in journal.entries for name in (*awaited.names, "ends"))

        if not self._wait(awaited, is_decided):
            return self._unknown()
        entry = next((journal.entries[name] for name in awaited.names if name in journal.entries), None)
        return self._without(awaited, journal) if entry is None else self._value(awaited, journal, entry)

    def _wait(self, awaited: Awaited | None, is_there: Callable[[], bool]) -> bool:
        """Wait until something is there.

        Args:
            awaited: what it is; None for what is certain to come.
            is_there: looks for it.

        Returns:
            whether it came; if not, this rank has to do without.

        Raises:
            RunError: it would be waited for in vain on the cluster.
        """
        looks, came = 0, True
        while not is_there():
            if awaited is not None and looks == _LOOKS_BEFORE_DOUBT:
                self.say("waits", *_as_words(awaited))
            elif awaited is not None and looks > _LOOKS_BEFORE_DOUBT and self._waits_for_itself(awaited):
                came = False
                break
            time.sleep(_PAUSES[min(looks // 4, len(_PAUSES) - 1)])
            looks += 1
        if awaited is not None and looks > _LOOKS_BEFORE_DOUBT:
            self.say("waits")  # for nothing any more
        return came

    def _value(self, awaited: Awaited, journal: Journal, entry: Any) -> Any:
        operation, line = entry.words
        expected = awaited.operation.replace("receive ", "send ", 1)
        if awaited.is_certain and operation != expected:
            raise _stuck(
                [(self.rank, awaited.operation, awaited.line), (awaited.rank, operation, line)],
                "do not call the same",
            )
        if operation != expected:
            return self._unknown()
        if not entry.size:
            return NOTHING
        return pickle.loads(journal.payload(entry))  # noqa: S301  written by this very run

    def _without(self, awaited: Awaited, journal: Journal) -> Any:
        """What becomes of a wait for a rank that has ended."""
        if awaited.is_certain and journal.entries["ends"].words == (SCRIPT_ENDED,):
            raise RunError(
                f"rank {self.rank} would wait for ever on the cluster: for rank {awaited.rank}, whose script "
                f"has ended, in {awaited.operation}",
                where=awaited.line,
                hint="Let every rank of the group make this call",
            )
        return self._unknown()

    def _unknown(self) -> Any:
        self.unknown += 1
        return NOTHING

    def _waits_for_itself(self, awaited: Awaited) -> bool:
        """Whether a rank that this one waits for waits for this one.

        Returns:
            True if so, and this rank has to do without.

        Raises:
            RunError: so it would be on the cluster.
        """
        chain = [awaited]
        while chain[-1].rank != self.rank:
            journal = self._journal(chain[-1].rank)
            journal.read_on()
            said = journal.of_kind["waits"]
            if not said or not said[-1].words or len(chain) > len(self._journals) + 1:
                return False
            chain.append(_of_words(said[-1].words))
        # Once more: what one of them waits for may have come while the others were asked.
        for waiting, other in zip(chain, [*chain[1:], None], strict=True):
            journal = self._journal(waiting.rank)
            journal.read_on()
            if any(name in journal.entries for name in waiting.names):
                return False
            said = journal.of_kind["waits"]
            if other is not None and (not said[-1].words or _of_words(said[-1].words) != other):
                return False
        if awaited.names and not all(waiting.names for waiting in chain):
            return False  # who waits for roles goes on without
        if all(waiting.is_certain and not waiting.is_async for waiting in chain):
            ranks = [self.rank, *(waiting.rank for waiting in chain[:-1])]
            raise _stuck(
                [(rank, one.operation, one.line) for rank, one in zip(ranks, chain, strict=True)],
                "wait for each other",
            )
        return not awaited.is_certain or awaited.is_async


def _stuck(calls: Sequence[tuple[int, str, str]], why: str) -> RunError:
    first, *others = [f"rank {rank} in {operation} at {line}" for rank, operation, line in calls]
    return RunError(
        f"the cluster would wait for ever, since these ranks {why}: {first}, {', '.join(others)}",
        where=calls[0][2],
        hint="Let the ranks of a group make the same calls in the same order",
    )


def _as_words(awaited: Awaited) -> list[str]:
    return [json.dumps(awaited)]


def _of_words(words: Sequence[str]) -> Awaited:
    rank, names, *rest = json.loads(words[0])
    return Awaited(rank, tuple(names), *rest)
