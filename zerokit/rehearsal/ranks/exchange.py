"""What the ranks that are rehearsed at the same time exchange.

A value of a rank that is not rehearsed comes from the rank that stands for it. No rank waits for a value that
cannot come: ranks that would hang on the cluster are reported with their lines.
"""

from __future__ import annotations

import json
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from zerokit.errors import RunError
from zerokit.rehearsal.errors import script_line
from zerokit.rehearsal.job import RehearsalJob
from zerokit.rehearsal.ranks.call_order import CALLS, SCRIPT_ENDED, STEPS_DONE, CallOrder, group_name
from zerokit.rehearsal.ranks.journal import Entry, Journal
from zerokit.rehearsal.ranks.roles import (
    ROLES,
    Ranks,
    Roles,
    data_parallel,
    request_every_rank,
    roles_at_start,
    wants_every_rank,
)
from zerokit.rehearsal.ranks.skipped_modules import MODULES, skipped_module

T = TypeVar("T")

_PAUSES = (0.0002, 0.001, 0.005)
"""Seconds between looks, the last one for all that follow."""
_LOOKS_BEFORE_DOUBT = 20
"""After this many looks a rank publishes that it waits, and checks whether other ranks wait for it."""
_LOOKS_FOR_MODULES = 400
"""Two seconds of looks for what a rank that waits for this one has run."""
_FILE, _BARRIER, _MADE = "file", "barrier", "made"
"""Prefixes of entries: written files, barriers of all ranks, and what rank 0 makes for all."""


class _Unknown:
    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "UNKNOWN"  # the one of this module, wherever it is unpickled


UNKNOWN = _Unknown()
"""A value that no rank knows."""


class Awaited(NamedTuple):
    """What a rank waits for."""

    rank: int
    names: tuple[str, ...]
    """Names of the entries that end the wait."""
    operation: str
    line: str
    is_certain: bool
    """Whether the other rank itself takes part, and does not stand for the rank that does."""
    is_async: bool = False
    """Whether the script goes on meanwhile on the cluster."""


class Exchange:
    """One rank's part in the exchange.

    `folder` is of the ranks of one rehearsal only, because pickles are read from it; None: there is one rank.
    """

    def __init__(self, folder: Path | None, rank: int, num_gpus: int) -> None:
        self.folder = folder
        self.rank = rank
        self.unknown_values = 0
        """Values that no rank knew; this rank went on with its own."""
        self.substituted = 0
        """Values of a rank that stands for another one, and differ from this rank's own."""
        self.publish_groups: Callable[[], None] = lambda: None
        """On rank 0: publish the groups that the script has made."""
        self.modules: Callable[[], bytes] = bytes
        """What this rank publishes as :data:`MODULES`."""
        self._own = None if folder is None else Journal(folder, rank)
        self._journals: dict[int | str, Journal] = {}
        self._calls: Counter[str] = Counter()
        self._groups: Counter[Ranks] = Counter()
        self._published_by_0: tuple[str, list[Ranks]] = "", []
        self._never_published: set[Ranks] = set()
        """Groups that rank 0 cannot publish before this rank goes on."""
        self._world = tuple(range(num_gpus))
        self._roles = roles_at_start(folder, num_gpus)
        self._roles_name = ""
        self._is_closed = False
        self._order = CallOrder()

    @property
    def is_active(self) -> bool:
        """Whether other ranks are rehearsed at the same time."""
        return self._own is not None

    def publish(self, name: str, *words: str, payload: bytes = b"") -> None:
        """Add an entry that all other ranks can read."""
        if self._own is not None:
            self._own.write(name, *words, payload=payload)

    def close(self, ending: str, *, steps: int = 0) -> None:
        """Publish once that nothing follows after `steps` optimizer steps.

        `ending` is :data:`STEPS_DONE`, :data:`SCRIPT_ENDED` or :data:`FAILED`.
        """
        if not self._is_closed:
            self._is_closed = True
            self.publish_groups()
            self.publish(CALLS, payload=self._order.to_json(steps))
            self._publish_modules()
            self.publish("ends", ending)

    def record_call(self, ranks: Ranks, operation: str, *, number: int = 0, is_async: bool = False) -> None:
        """Record a collective in its order on a group, with arguments as of :meth:`share`."""
        if self.is_active:
            self._order.add(group_name(ranks, number), ranks, operation, is_async=is_async)
            if operation == "barrier" and ranks == self._world and not is_async:
                self.publish(f"{_BARRIER}.{self._count(_BARRIER)}")

    # ---- roles
    def register_group(self, ranks: Ranks) -> int:
        """Register a group that the script has made, and return its number among those of these ranks.

        The group of all ranks is there from the start.
        """
        self._groups[ranks] += 1
        return self._groups[ranks] - (ranks != self._world)

    def _roles_for(self, groups: Iterable[Ranks], pair: str = "") -> Roles:
        """The roles as known when `groups` had been made, and `pair` had been published."""
        self.publish_groups()
        needed = self._groups.keys() & set(groups)

        def are_known() -> bool:
            watch = self._journal(ROLES)
            return "ends" in watch.entries or self._covers(watch, needed, pair)

        waiting = Awaited(0, (), "new_group", script_line(), is_certain=False)
        while not self._wait(waiting if self.rank != 0 else None, are_known):
            self._never_published |= needed - set(self._groups_of_rank_0())
        watch = self._journal(ROLES)
        published = watch.last("roles")
        if published and published.name != self._roles_name:
            self._roles_name = published.name
            self._roles = Roles.from_json(watch.payload(published))
        return self._roles

    def _covers(self, watch: Journal, groups: Set[Ranks], pair: str) -> bool:
        """Whether the last roles rest on `pair` and on `groups`, except those that are never published."""
        published = watch.last("roles")
        if pair and (not published or pair not in published.words[1:]):
            return False
        if groups <= self._never_published:
            return True
        of_rank_0 = self._groups_of_rank_0()
        if "ends" in self._journal(0).entries:
            self._never_published |= groups - set(of_rank_0)
        covered = of_rank_0[: int(published.words[0])] if published else []
        return groups <= self._never_published.union(covered)

    def _groups_of_rank_0(self) -> list[Ranks]:
        """The groups that rank 0 has published, in order."""
        first = self._journal(0)
        published = first.last("groups")
        if published and published.name != self._published_by_0[0]:
            made = json.loads(first.payload(published))
            self._published_by_0 = published.name, [tuple(ranks) for _, _, ranks in made]
        return self._published_by_0[1]

    # ---- values that a group shares
    def share(
        self,
        ranks: Ranks,
        operation: str,
        value: Any = UNKNOWN,
        *,
        of: Sequence[int] | None = None,
        number: int = 0,
        is_async: bool = False,
    ) -> dict[int, Any]:
        """Publish the own value of a collective, and return those of others by rank, as far as known.

        Args:
            ranks: of the group, all of which call this in the same order.
            operation: the collective and its size, the same on all of them.
            value: anything that can be pickled; :data:`UNKNOWN` if it is not known or not requested.
            of: the ranks whose values are wanted; None for all.
            number: of the group, as of :meth:`register_group`.
            is_async: whether the script goes on meanwhile on the cluster.

        Raises:
            RunError: the ranks do not call the same, or wait for each other.
        """
        if not self.is_active:
            self.unknown_values += of is not None and self.rank not in of and len(of) > 0
            return _known({self.rank: value})
        group = group_name(ranks, number)
        call = self._calls[group]
        self._calls[group] += 1
        line = script_line()
        self.publish(f"{group}.{call}", operation, line, payload=_pickled(value))
        values = {self.rank: value}
        wanted = ranks if of is None else tuple(of)
        if wanted == (self.rank,):
            return _known(values)
        roles = self._roles_for([ranks])
        by_source = {self.rank: value}
        """Values by the rank that stands for others."""
        for rank in wanted:
            source = rank if rank == self.rank else roles.stands_for(rank, ranks)
            if source not in by_source:
                members = ranks if source in ranks else self._group_like(ranks, source, roles)
                names = () if members is None else (f"{group_name(members, number)}.{call}",)
                by_source[source] = self.wait_for(Awaited(source, names, operation, line, source == rank, is_async))
            values[rank] = found = by_source[source]
            is_own = isinstance(found, bytes) and found == value
            self.substituted += source != rank and found is not UNKNOWN and not is_own
        return _known(values)

    def _group_like(self, ranks: Ranks, member: int, roles: Roles) -> Ranks | None:
        """The group that is to `member` what the group of `ranks` is to this rank."""
        pattern = roles.pattern(ranks)
        alike = (group for group in self._groups if member in group and len(group) == len(ranks))
        return next((group for group in alike if roles.pattern(group) == pattern), None)

    def made_once(self, name: str, what: str, make: Callable[[], T]) -> T:
        """The result of `make` on rank 0, made once for all ranks and also for changes of the run.

        If rank 0 is not rehearsed with this rank, `make` runs here.
        """
        name = f"{_MADE}.{name}"
        if self.is_active and (self.rank != 0 or name in self._journal(0).entries):
            unknown = self.unknown_values
            found: T = self.wait_for(Awaited(0, (name,), what, script_line(), is_certain=False))
            if found is not UNKNOWN:
                return found
            self.unknown_values = unknown
        made = make()
        if self.rank == 0:
            self.publish(name, what, script_line(), payload=_pickled(made))
        return made

    # ---- files that one rank writes and others read
    def publish_file(self, path: str) -> None:
        """Publish that this rank has written a file."""
        self.publish(f"{_FILE}.{path}")

    def wait_for_file(self, path: str, *, is_there: bool) -> None:
        """Wait for what the other rehearsed ranks write, as this rank would on the cluster.

        If the file is there, wait until the others have passed as many barriers as this rank. Else wait until
        a rank publishes it, as long as each may still do so and does not wait for this rank.
        """
        passed = self._calls[_BARRIER]
        if not self.is_active or (is_there and not passed):
            return
        name = f"{_FILE}.{path}"
        awaited = f"{_BARRIER}.{passed}" if is_there else name
        others = [rank for rank in self._roles.rehearsed if rank != self.rank]
        for rank in others:

            def is_decided(rank: int = rank) -> bool:
                if not is_there and any(name in self._journal(other).entries for other in others):
                    return True
                return not self._journal(rank).entries.keys().isdisjoint((awaited, "ends"))

            waiting = Awaited(rank, (awaited,), "torch.load", script_line(), is_certain=False)
            self._wait(waiting, is_decided)

    # ---- values that one rank sends to another
    def send(self, destination: int, tag: int, what: str, value: Any) -> None:
        """Publish a tensor of `what` size and type for one rank; `value` as of :meth:`share`."""
        self._publish_pair(destination)
        call = self._count(f"to {destination} {tag}")
        name = _name_of_sent(self.rank, destination, tag, call)
        self.publish(name, f"send {what}", script_line(), payload=_pickled(value))

    def expect(self, source: int, tag: int, what: str) -> Awaited:
        """What `source` is to send next, for :meth:`wait_for`."""
        self._publish_pair(source)
        roles = self._roles_for(self._groups, _pair(self.rank, source))
        both = [ranks for ranks in self._groups if self.rank in ranks and source in ranks]
        sender = roles.stands_for(source, min(both, key=len, default=()))
        call = self._count(f"from {source} {tag}")
        to = [self.rank] if sender == source else roles.alike(self.rank)
        names = () if sender == self.rank else tuple(_name_of_sent(sender, rank, tag, call) for rank in to)
        return Awaited(sender, names, f"receive {what}", script_line(), sender == source)

    def _count(self, what: str) -> int:
        self._calls[what] += 1
        return self._calls[what]

    def _publish_pair(self, other: int) -> None:
        """Publish once that this rank and `other` send to each other, which makes roles of what they are."""
        if not self._calls[_pair(self.rank, other)]:
            self._count(_pair(self.rank, other))
            self.publish(f"pair.{other}", str(self.rank), str(other))

    # ---- waiting
    def wait_for(self, awaited: Awaited) -> Any:
        """Wait for a value of another rank; :data:`UNKNOWN` if no rank knows it.

        Raises:
            RunError: it never comes on the cluster, or what comes does not fit.
        """

        def is_decided() -> bool:
            entries = self._journal(awaited.rank).entries
            return not awaited.names or any(name in entries for name in (*awaited.names, "ends"))

        if not self._wait(awaited, is_decided):
            return self._unknown()
        journal = self._journal(awaited.rank)
        entry = next((journal.entries[name] for name in awaited.names if name in journal.entries), None)
        return self._of_ended(awaited, journal) if entry is None else self._value(awaited, journal, entry)

    def _journal(self, owner: int | str) -> Journal:
        """The journal of a rank or of the roles, as far as it is written."""
        assert self.folder is not None
        if owner not in self._journals:
            self._journals[owner] = Journal(self.folder, owner)
        self._journals[owner].read_on()
        return self._journals[owner]

    def _wait(self, awaited: Awaited | None, is_there: Callable[[], bool]) -> bool:
        """Wait until `is_there`, and return whether it came; else this rank goes on without it.

        `awaited` is None if it certainly comes.

        Raises:
            RunError: the rank would wait for ever on the cluster.
        """
        looks, came = 0, True
        while not is_there():
            if awaited is not None and looks == _LOOKS_BEFORE_DOUBT:
                self.publish("waits", json.dumps(awaited))
            elif awaited is not None and looks > _LOOKS_BEFORE_DOUBT and self._waits_for_itself(awaited):
                came = False
                break
            time.sleep(_PAUSES[min(looks // 4, len(_PAUSES) - 1)])
            looks += 1
        if awaited is not None and looks > _LOOKS_BEFORE_DOUBT:
            self.publish("waits")  # for nothing any more
        return came

    def _value(self, awaited: Awaited, journal: Journal, entry: Entry) -> Any:
        operation, line = entry.words
        expected = awaited.operation.replace("receive ", "send ", 1)
        if awaited.is_certain and operation != expected:
            raise self._stuck(
                [(self.rank, awaited.operation, awaited.line), (awaited.rank, operation, line)], "do not call the same"
            )
        if operation != expected:
            return self._unknown()
        if not entry.size:
            return UNKNOWN
        return pickle.loads(journal.payload(entry))  # noqa: S301  written by this very run

    def _of_ended(self, awaited: Awaited, journal: Journal) -> Any:
        """The value of a rank that has ended."""
        if awaited.is_certain and journal.entries["ends"].words == (SCRIPT_ENDED,):
            raise RunError(
                f"rank {self.rank} would wait for ever on the cluster: for rank {awaited.rank}, whose script "
                f"has ended, in {awaited.operation}",
                where=awaited.line,
                hint="Let every rank of the group make this call",
            )
        return self._unknown()

    def _unknown(self) -> Any:
        self.unknown_values += 1
        return UNKNOWN

    def _waits_for_itself(self, awaited: Awaited) -> bool:
        """Whether a rank that this one waits for waits for this one, which then goes on without the value.

        Raises:
            RunError: they would wait for each other on the cluster too.
        """
        chain = [awaited]
        while chain[-1].rank != self.rank:
            waiting = self._waiting(chain[-1].rank)
            if waiting is None or len(chain) > len(self._journals) + 1:
                return False
            chain.append(waiting)
        # Check again: what one of them waits for may have come while the others were read.
        for waiting, other in zip(chain, [*chain[1:], None], strict=True):
            if any(name in self._journal(waiting.rank).entries for name in waiting.names):
                return False
            if other is not None and self._waiting(waiting.rank) != other:
                return False
        if awaited.names and not all(waiting.names for waiting in chain):
            return False  # a rank that waits for roles goes on without
        if all(waiting.is_certain and not waiting.is_async for waiting in chain):
            ranks = [self.rank, *(waiting.rank for waiting in chain[:-1])]
            raise self._stuck(
                [(rank, one.operation, one.line) for rank, one in zip(ranks, chain, strict=True)],
                "wait for each other",
            )
        return not awaited.is_certain or awaited.is_async

    def _stuck(self, calls: Sequence[tuple[int, str, str]], why: str) -> RunError:
        first, *others = [f"rank {rank} in {operation} at {line}" for rank, operation, line in calls]
        return RunError(
            f"the cluster would wait for ever, since these ranks {why}: {first}, {', '.join(others)}",
            where=calls[0][2],
            hint=self._skipped_module(calls[1][0]) or "Let the ranks of a group make the same calls in the same order",
        )

    def _publish_modules(self) -> None:
        if not self._calls[MODULES]:
            self._count(MODULES)
            self.publish(MODULES, payload=self.modules())

    def _skipped_module(self, other: int) -> str:
        """What this rank and another one, which finds the same, ran differently; empty if it is not known."""
        self._publish_modules()
        for _ in range(_LOOKS_FOR_MODULES):
            journal = self._journal(other)
            if MODULES in journal.entries:
                return skipped_module((self.rank, self.modules()), (other, journal.payload(journal.entries[MODULES])))
            time.sleep(_PAUSES[-1])
        return ""

    def _waiting(self, rank: int) -> Awaited | None:
        """What another rank waits for."""
        published = self._journal(rank).last("waits")
        if published is None or not published.words:
            return None
        waits_for, names, *rest = json.loads(published.words[0])
        return Awaited(waits_for, tuple(names), *rest)


def prepare_exchange_of_change(first: RehearsalJob, changed: RehearsalJob, *, alone: bool) -> None:
    """Make the exchange folder for rehearsing a changed run after `first`.

    It gets the results of :meth:`Exchange.made_once`, if the number of ranks is unchanged: nothing else that
    ranks have published is valid for the changed run. With `alone`, only rank 0 is rehearsed, and the other
    ranks are published as ended.
    """
    assert first.exchange_folder is not None
    assert changed.exchange_folder is not None
    folder = Path(changed.exchange_folder)
    folder.mkdir()
    if changed.num_gpus == first.num_gpus:
        if not alone and wants_every_rank(Path(first.exchange_folder)):
            request_every_rank(folder)
        before, own = Journal(Path(first.exchange_folder), 0), Journal(folder, 0)
        before.read_on()
        for entry in before.of_kind[_MADE]:
            own.write(entry.name, *entry.words, payload=before.payload(entry))
    if alone:
        owners: list[int | str] = [*data_parallel(changed.num_gpus).rehearsed, ROLES]
        for owner in owners:
            Journal(folder, owner).write("ends", STEPS_DONE)


def _pair(one: int, other: int) -> str:
    return f"{min(one, other)} and {max(one, other)}"


def _name_of_sent(source: int, destination: int, tag: int, call: int) -> str:
    return f"sent.{source}.{destination}.{tag}.{call}"


def _pickled(value: Any) -> bytes:
    return b"" if value is UNKNOWN else pickle.dumps(value)


def _known(values: dict[int, Any]) -> dict[int, Any]:
    return {rank: value for rank, value in values.items() if value is not UNKNOWN}
