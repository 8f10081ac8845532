"""The roles of a run: which ranks hold the same, by the process groups that the script makes.

Data-parallel ranks have one role. Each stage of a pipeline is a role; in any other group (tensor, sequence,
expert, or unknown purpose), the first rank and the others are roles, because uneven parts fall to one end.
One rank of each role is rehearsed, and stands for the others.

The ranks of a tensor or sequence group exchange values that are valid in their own group only: if one of them
is rehearsed, one of each role in the group is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

GroupKind = Literal["pipeline", "tensor", "sequence", "expert", "data", "unknown"]
Ranks = tuple[int, ...]

_FIRST_COUNTS: tuple[GroupKind, ...] = ("pipeline", "tensor", "sequence", "expert", "data", "unknown")
"""Of the purposes of groups of the same ranks."""
_OF_SAME_DATA: frozenset[GroupKind] = frozenset({"tensor", "sequence", "unknown"})
"""Purposes of groups whose ranks may work on the same data."""
ROLES = "roles"
"""Who writes the journal of the roles."""
_EVERY_RANK = "every-rank"
"""A file in the folder of ranks that are all rehearsed."""
MOST_RANKS = 8
"""That are rehearsed: each is a process with torch and DeepSpeed in it."""


@dataclass(frozen=True)
class Axis:
    """Groups of one size and purpose that have no rank in common, such as all tensor-parallel groups."""

    kind: GroupKind
    groups: tuple[Ranks, ...]

    @property
    def size(self) -> int:
        """Ranks of one group."""
        return len(self.groups[0])


@dataclass(frozen=True)
class Roles:
    """Every rank's role, and which ranks are rehearsed."""

    names: tuple[str, ...]
    """Of the roles; empty for data parallelism alone."""
    of_rank: tuple[int, ...]
    """Place of each rank's role in :attr:`names`."""
    rehearsed: Ranks
    """Rank 0 first, then in order; at least one of each role."""
    left_out: tuple[str, ...] = ()
    """Groups whose places make no roles, as more than :data:`MOST_RANKS` ranks would have to be rehearsed."""

    @cached_property
    def standing_for(self) -> dict[int, int]:
        """The rehearsed rank that stands for the ranks of each role: the last one, as rank 0 may do more."""
        return {self.of_rank[rank]: rank for rank in sorted(self.rehearsed)}

    def stands_for(self, rank: int, group: Ranks = ()) -> int:
        """The rehearsed rank that answers for `rank`: one of `group`, if there is one of its role in it."""
        if rank in self.rehearsed:
            return rank
        mates = [one for one in group if one in self.rehearsed and self.of_rank[one] == self.of_rank[rank]]
        return max(mates, default=self.standing_for[self.of_rank[rank]])

    def alike(self, rank: int) -> list[int]:
        """All ranks of the role of `rank`."""
        return [other for other, role in enumerate(self.of_rank) if role == self.of_rank[rank]]

    def pattern(self, ranks: Ranks) -> Ranks:
        """The role of each of `ranks`."""
        return tuple(self.of_rank[rank] for rank in ranks)

    def to_json(self) -> str:
        return json.dumps([self.names, self.of_rank, self.rehearsed, self.left_out])

    @classmethod
    def from_json(cls, text: str | bytes) -> Roles:
        return cls(*(tuple(part) for part in json.loads(text)))


def data_parallel(num_gpus: int) -> Roles:
    """Of a run that has made no groups: the first rank, and the last one for all others."""
    return Roles(("",), (0,) * num_gpus, tuple(sorted({0, num_gpus - 1})))


def request_every_rank(folder: Path) -> None:
    """Have all ranks be rehearsed that exchange values in `folder`, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / _EVERY_RANK).touch()


def wants_every_rank(folder: Path) -> bool:
    """Whether all ranks are rehearsed that exchange values in `folder`."""
    return (folder / _EVERY_RANK).exists()


def roles_at_start(folder: Path | None, num_gpus: int) -> Roles:
    """Of ranks that exchange values in `folder`, before they have made groups."""
    roles = data_parallel(num_gpus)
    is_every = folder is not None and wants_every_rank(folder)
    return replace(roles, rehearsed=tuple(range(num_gpus))) if is_every else roles


def axes_of(groups: Iterable[tuple[str, GroupKind, Ranks]]) -> list[Axis]:
    """Group process groups, given by place, purpose and ranks, into axes of those that belong together."""
    found: list[tuple[str, list[Ranks], set[int], set[GroupKind]]] = []
    for where, kind, ranks in groups:
        if len(ranks) < 2:
            continue
        for place, members, taken, kinds in found:
            if ranks in members:
                kinds.add(kind)
                break
            if place == where and len(members[0]) == len(ranks) and not taken & set(ranks):
                members.append(ranks)
                taken.update(ranks)
                kinds.add(kind)
                break
        else:
            found.append((where, [ranks], set(ranks), {kind}))
    return [
        Axis(next(kind for kind in _FIRST_COUNTS if kind in kinds), tuple(members)) for _, members, _, kinds in found
    ]


def find_roles(num_gpus: int, axes: Sequence[Axis], rehearsed: Iterable[int] = ()) -> Roles:
    """The roles that `axes` make; ranks in `rehearsed` are rehearsed already, and stay."""
    started = {0, num_gpus - 1, *rehearsed}
    left_out = []
    splits = [axis for axis in axes if axis.kind != "data" and (axis.kind, axis.size) != ("unknown", num_gpus)]
    signatures: list[tuple[str, ...]] = [()] * num_gpus
    together: list[Ranks] = []
    """Groups of which one rank of each role is rehearsed if any is."""
    for axis in sorted(splits, key=lambda axis: (_FIRST_COUNTS.index(axis.kind), axis.size)):
        # Stages are put together until few enough ranks are rehearsed; groups of groups add nothing.
        for parts in range(min(axis.size, MOST_RANKS) if axis.kind == "pipeline" else 2, 1, -1):
            split = _split(signatures, axis, parts)
            if len(set(split)) == len(set(signatures)):
                break
            of_axis = axis.groups if axis.kind in _OF_SAME_DATA else ()
            if len(_chosen(split, started, [*together, *of_axis])) <= MOST_RANKS:
                signatures = split
                together += of_axis
                break
        else:
            members = [rank for ranks in axis.groups for rank in ranks]
            # A group that holds whole other ones, such as all of a model's, does not distinguish its members.
            if len({split[rank] for rank in members}) > len({signatures[rank] for rank in members}):
                left_out.append(f"{axis.kind} groups of {axis.size}")
    numbers = {signature: number for number, signature in enumerate(dict.fromkeys(signatures))}
    return Roles(
        tuple(", ".join(filter(None, signature)) for signature in numbers),
        tuple(numbers[signature] for signature in signatures),
        _chosen(signatures, started, together),
        tuple(left_out),
    )


def _chosen(signatures: Sequence[tuple[str, ...]], started: Iterable[int], together: Iterable[Ranks]) -> Ranks:
    """`started`, the first rank of each other role, and one of each role in their groups of `together`."""
    chosen = set(started)

    def lacking(ranks: Sequence[int]) -> dict[tuple[str, ...], int]:
        """The last of `ranks` of each role that is not chosen among them: it is at the uneven end."""
        taken = {signatures[rank] for rank in chosen.intersection(ranks)}
        return {signatures[rank]: rank for rank in ranks if signatures[rank] not in taken}

    while True:
        known = len(chosen)
        for ranks in together:
            if chosen.intersection(ranks):
                chosen.update(lacking(ranks).values())
        if len(chosen) == known:
            left = lacking(range(len(signatures)))
            if not left:
                return tuple(sorted(chosen))
            chosen.add(signatures.index(next(iter(left))))


def _split(signatures: Sequence[tuple[str, ...]], axis: Axis, parts: int) -> list[tuple[str, ...]]:
    """`signatures` of all ranks, with their places in the groups of `axis`."""
    words = {rank: _place(axis, ranks.index(rank), parts) for ranks in axis.groups for rank in ranks}
    return [(*known, words.get(rank, "")) for rank, known in enumerate(signatures)]


def _place(axis: Axis, position: int, parts: int) -> str:
    if axis.kind == "pipeline":
        return _stages(position, axis.size, parts)
    what = "rank" if axis.kind == "unknown" else f"{axis.kind} rank"
    if position == 0:
        return f"{what} 0 of {axis.size}"
    return f"{what} 1 of 2" if axis.size == 2 else f"{what}s 1 to {axis.size - 1} of {axis.size}"


def _stages(position: int, size: int, parts: int) -> str:
    """Stages next to each other are one role where there are more than `parts`, which can be rehearsed."""
    together = [stage for stage in range(size) if stage * parts // size == position * parts // size]
    if len(together) == 1:
        return f"pipeline stage {position} of {size}"
    return f"pipeline stages {together[0]} to {together[-1]} of {size}"
