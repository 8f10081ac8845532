"""What the ranks that are rehearsed at the same time tell each other.

What a rank that is not rehearsed would say is taken from the one that stands for it, in its own group.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import Any, TypeVar

from zerokit.rehearsal.errors import script_line
from zerokit.rehearsal.parent.job import RehearsalJob
from zerokit.rehearsal.ranks.call_order import CALLS, STEPS_DONE, CallOrder, group_name
from zerokit.rehearsal.ranks.journal import Journal
from zerokit.rehearsal.ranks.listening import NOTHING, Awaited, Listener
from zerokit.rehearsal.ranks.roles import ROLES, Ranks, Roles, data_parallel

T = TypeVar("T")

_FILE = "file"
"""What a file would hold that its rank leaves out, before the first dot of its name."""
_BARRIER = "barrier"
"""That a rank has passed one of all ranks, before the first dot of its name."""

_MADE = "made"
"""What rank 0 makes for all, before the first dot of its name."""


class Exchange(Listener):
    """One rank's part in it.

    Args:
        folder: shared by the ranks of one rehearsal, and theirs alone, since pickles are read from it; None
            if this rank is rehearsed by itself.
        rank: this rank.
        num_gpus: world size.
    """

    def __init__(self, folder: Path | None, rank: int, num_gpus: int) -> None:
        super().__init__(folder, rank)
        self._calls: Counter[str] = Counter()
        self._groups: Counter[Ranks] = Counter()
        self._told_by_0: tuple[str, list[Ranks]] = "", []
        self._never_told: set[Ranks] = set()
        """Groups that rank 0 cannot tell of before this rank goes on."""
        self._world = tuple(range(num_gpus))
        self._roles = data_parallel(num_gpus)
        self._roles_name = ""
        self.tell_groups: Callable[[], None] = lambda: None
        """As rank 0: say which groups the script has made; before it waits for roles that come of them."""
        self._is_closed = False
        self._order = CallOrder()
        self.stood_for = 0
        """Values that came from a rank that stands for the one that has them, and are not this one's own."""

    def close(self, ending: str, *, steps: int = 0) -> None:
        """Say once that no more will come.

        Args:
            ending: :data:`STEPS_DONE`, :data:`SCRIPT_ENDED` or :data:`FAILED`.
            steps: optimizer steps until then.
        """
        if not self._is_closed:
            self._is_closed = True
            self.tell_groups()
            self.say(CALLS, payload=self._order.to_json(steps))
            self.say("ends", ending)

    def note_call(self, ranks: Ranks, operation: str, *, number: int = 0, is_async: bool = False) -> None:
        """Take down a collective in its order on a group, whether or not values are shared.

        Args:
            ranks: of the group, as of :meth:`share`.
            number: likewise.
            operation: the collective and its size, the same on all of them.
            is_async: whether the script goes on meanwhile on the cluster.
        """
        if self.is_active:
            self._order.add(group_name(ranks, number), ranks, operation, is_async=is_async)
            if operation == "barrier" and ranks == self._world and not is_async:
                self.say(f"{_BARRIER}.{self._count(_BARRIER)}")

    # ---- roles
    def know_group(self, ranks: Ranks) -> int:
        """Take a group that the script has made into account.

        Returns:
            its number among the groups of these ranks; that of all ranks is there from the start.
        """
        self._groups[ranks] += 1
        return self._groups[ranks] - (ranks != self._world)

    def _roles_for(self, groups: Iterable[Ranks], pair: str = "") -> Roles:
        """The roles as known when `groups` had been made, and `pair` had been told of."""
        self.tell_groups()
        needed = self._groups.keys() & set(groups)
        watch = self._journal(ROLES)

        def are_known() -> bool:
            watch.read_on()
            return "ends" in watch.entries or self._covers(watch, needed, pair)

        waiting = Awaited(0, (), "new_group", script_line(), is_certain=False)
        while not self._wait(waiting if self.rank != 0 else None, are_known):
            self._never_told |= needed - set(self._groups_of_rank_0())
        said = watch.of_kind["roles"]
        if said and said[-1].name != self._roles_name:
            self._roles_name = said[-1].name
            self._roles = Roles.from_json(watch.payload(said[-1]))
        return self._roles

    def _covers(self, watch: Journal, groups: Set[Ranks], pair: str) -> bool:
        """Whether the roles that were said last rest on `groups`, but for those never told, and on `pair`."""
        said = watch.of_kind["roles"]
        if pair and (not said or pair not in said[-1].words[1:]):
            return False
        if groups <= self._never_told:
            return True
        told = self._groups_of_rank_0()
        if "ends" in self._journal(0).entries:
            self._never_told |= groups - set(told)
        covered = told[: int(said[-1].words[0])] if said else []
        return groups <= self._never_told.union(covered)

    def _groups_of_rank_0(self) -> list[Ranks]:
        """Those that it has told of, in order."""
        first = self._journal(0)
        first.read_on()
        told = first.of_kind["groups"]
        if told and told[-1].name != self._told_by_0[0]:
            made = json.loads(first.payload(told[-1]))
            self._told_by_0 = told[-1].name, [tuple(ranks) for _, _, ranks in made]
        return self._told_by_0[1]

    # ---- values that a group shares
    def share(
        self,
        ranks: Ranks,
        operation: str,
        value: Any = NOTHING,
        *,
        of: Sequence[int] | None = None,
        number: int = 0,
        is_async: bool = False,
    ) -> dict[int, Any]:
        """Tell the own value of a collective, and hear those of others.

        Args:
            ranks: of the group, all of which call this in the same order.
            operation: the collective and its size, the same on all of them.
            value: what can be pickled; :data:`NOTHING` if it is not known, or not asked for.
            of: whose values are wanted; None for all.
            number: of the group, as of :meth:`know_group`: each group has an order of its own.
            is_async: whether the script goes on meanwhile on the cluster, where nobody waits here.

        Returns:
            values by rank, without those that nobody can tell.

        Raises:
            RunError: the ranks do not call the same, or wait for each other.
        """
        if not self.is_active:
            self.unknown += of is not None and self.rank not in of and len(of) > 0
            return _told({self.rank: value})
        group = group_name(ranks, number)
        call = self._calls[group]
        self._calls[group] += 1
        line = script_line()
        self.say(f"{group}.{call}", operation, line, payload=_packed(value))
        known = {self.rank: value}
        wanted = ranks if of is None else tuple(of)
        if wanted == (self.rank,):
            return _told(known)
        roles = self._roles_for([ranks])
        told = {self.rank: value}
        """By the rank that stands for others."""
        for rank in wanted:
            source = rank if rank == self.rank else roles.stands_for(rank, ranks)
            if source not in told:
                members = ranks if source in ranks else self._like(ranks, source, roles)
                names = () if members is None else (f"{group_name(members, number)}.{call}",)
                told[source] = self.hear(Awaited(source, names, operation, line, source == rank, is_async))
            known[rank] = told[source]
            self.stood_for += source != rank and _differs(told[source], value)
        return _told(known)

    def _like(self, ranks: Ranks, member: int, roles: Roles) -> Ranks | None:
        """The group that is to `member` what the group of `ranks` is to this rank."""
        pattern = roles.pattern(ranks)
        alike = (group for group in self._groups if member in group and len(group) == len(ranks))
        return next((group for group in alike if roles.pattern(group) == pattern), None)

    def of_rank_0(self, name: str, what: str, make: Callable[[], T]) -> T:
        """What rank 0 makes under `name`, once for all ranks, and for rehearsals of changes after this one.

        It is made here where rank 0 does not come to it.
        """
        name = f"{_MADE}.{name}"
        if self.is_active:
            said = self._journal(0)
            said.read_on()
            if self.rank != 0 or name in said.entries:
                unknown = self.unknown
                heard: T = self.hear(Awaited(0, (name,), what, script_line(), is_certain=False))
                if heard is not NOTHING:
                    return heard
                self.unknown = unknown
        made = make()
        if self.rank == 0:
            self.say(name, what, script_line(), payload=_packed(made))
        return made

    # ---- files that are left out
    def tell_of_file(self, path: str, held: bytes) -> None:
        """Tell what the file at `path`, which this rank leaves out, would hold."""
        self.say(f"{_FILE}.{path}", payload=held)

    def files_of_others(self, path: str, *, wait: bool) -> list[bytes]:
        """What the other rehearsed ranks have told of the file at `path`.

        Args:
            path: as of :meth:`tell_of_file`.
            wait: for one of them to tell of it, as long as each may still do so and does not wait for this
                rank; else only until they have come through as many barriers as this one.
        """
        if not self.is_active:
            return []
        name = f"{_FILE}.{path}"
        journals = {rank: self._journal(rank) for rank in self._roles.rehearsed if rank != self.rank}

        def told() -> list[bytes]:
            for journal in journals.values():
                journal.read_on()
            said = [one for one in journals.values() if name in one.entries]
            return [one.payload(one.entries[name]) for one in said]

        passed = self._calls[_BARRIER]
        awaited = name if wait else f"{_BARRIER}.{passed}"
        for rank in journals if wait or passed else ():
            waiting = Awaited(rank, (awaited,), "torch.load", script_line(), is_certain=False)

            def is_decided(rank: int = rank) -> bool:
                is_told = bool(told()) and wait
                return is_told or not journals[rank].entries.keys().isdisjoint((awaited, "ends"))

            self._wait(waiting, is_decided)
        return told()

    # ---- values that one rank sends to another
    def send(self, destination: int, tag: int, what: str, value: Any) -> None:
        """Tell one rank of a tensor.

        Args:
            destination: the rank.
            tag: as of `torch.distributed.send`.
            what: size and type of the tensor.
            value: what can be pickled; :data:`NOTHING` if it is not known.
        """
        self._tell_pair(destination)
        call = self._count(f"to {destination} {tag}")
        self.say(
            _sent(self.rank, destination, tag, call), f"send {what}", script_line(), payload=_packed(value)
        )

    def expect(self, source: int, tag: int, what: str) -> Awaited:
        """What `source` is to send next, for :meth:`hear`."""
        self._tell_pair(source)
        roles = self._roles_for(self._groups, _pair(self.rank, source))
        both = [ranks for ranks in self._groups if self.rank in ranks and source in ranks]
        teller = roles.stands_for(source, min(both, key=len, default=()))
        call = self._count(f"from {source} {tag}")
        to = [self.rank] if teller == source else roles.alike(self.rank)
        names = () if teller == self.rank else tuple(_sent(teller, rank, tag, call) for rank in to)
        return Awaited(teller, names, f"receive {what}", script_line(), teller == source)

    def _count(self, what: str) -> int:
        self._calls[what] += 1
        return self._calls[what]

    def _tell_pair(self, other: int) -> None:
        """Say once that this rank and `other` send to each other, which makes roles of what they are."""
        if not self._calls[_pair(self.rank, other)]:
            self._count(_pair(self.rank, other))
            self.say(f"pair.{other}", str(self.rank), str(other))


def for_a_change(first: RehearsalJob, changed: RehearsalJob, *, alone: bool) -> None:
    """Make the exchange of a change that is rehearsed after `first`.

    Of what ranks have said before, only what rank 0 made for all is true of a change, and only among as many
    ranks: other numbers of them, groups and sizes say something else.

    Args:
        first: of the run as it is.
        changed: of the change; both have an exchange folder.
        alone: whether no other rank is to answer.
    """
    assert first.exchange_folder is not None
    assert changed.exchange_folder is not None
    folder = Path(changed.exchange_folder)
    folder.mkdir()
    if changed.num_gpus == first.num_gpus:
        before, said = Journal(Path(first.exchange_folder), 0), Journal(folder, 0)
        before.read_on()
        for entry in before.of_kind[_MADE]:
            said.write(entry.name, *entry.words, payload=before.payload(entry))
    if alone:
        owners: list[int | str] = [*data_parallel(changed.num_gpus).rehearsed, ROLES]
        for owner in owners:
            Journal(folder, owner).write("ends", STEPS_DONE)


def _pair(one: int, other: int) -> str:
    return f"{min(one, other)} and {max(one, other)}"


def _sent(source: int, destination: int, tag: int, call: int) -> str:
    return f"sent.{source}.{destination}.{tag}.{call}"


def _differs(told: Any, own: Any) -> bool:
    """Whether another's value may change what this rank does."""
    return told is not NOTHING and not (isinstance(told, bytes) and told == own)


def _packed(value: Any) -> bytes:
    return b"" if value is NOTHING else pickle.dumps(value)


def _told(values: dict[int, Any]) -> dict[int, Any]:
    return {rank: value for rank, value in values.items() if value is not NOTHING}
