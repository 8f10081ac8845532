"""Finds the roles of a run while it is rehearsed, and which further ranks to rehearse."""

from __future__ import annotations

import json
from pathlib import Path

from zerokit.rehearsal.ranks.call_order import unequal_calls
from zerokit.rehearsal.ranks.journal import Journal
from zerokit.rehearsal.ranks.roles import ROLES, Axis, axes_of, find_roles, roles_at_start


class RoleWatch:
    """Reads the groups and sends that ranks publish in the exchange's folder, and publishes the roles."""

    def __init__(self, folder: Path, num_gpus: int) -> None:
        self._folder, self._num_gpus = folder, num_gpus
        self._own = Journal(folder, ROLES)
        self.roles = roles_at_start(folder, num_gpus)
        self._journals = {rank: Journal(folder, rank) for rank in self.roles.rehearsed}
        self._pairs: dict[tuple[int, int], None] = {}
        self._covered = 0

    def update_roles(self) -> tuple[int, ...]:
        """Read what ranks have published since, and publish new roles. Returns all ranks to rehearse."""
        for journal in self._journals.values():
            journal.read_on()
            for entry in journal.of_kind["pair"]:
                one, other = map(int, entry.words)
                self._pairs[min(one, other), max(one, other)] = None
        groups = self._journals[0].of_kind["groups"]
        if len(groups) + len(self._pairs) == self._covered:
            return self.roles.rehearsed
        self._covered = len(groups) + len(self._pairs)
        made = json.loads(self._journals[0].payload(groups[-1])) if groups else []
        axes = axes_of((where, kind, tuple(ranks)) for where, kind, ranks in made)
        for pair in self._pairs:
            axes = _with_stages(axes, pair, self._num_gpus)
        self.roles = find_roles(self._num_gpus, axes, self.roles.rehearsed)
        for rank in self.roles.rehearsed:
            self._journals.setdefault(rank, Journal(self._folder, rank))
        pairs = [f"{one} and {other}" for one, other in self._pairs]
        self._own.write(f"roles.{self._covered}", str(len(made)), *pairs, payload=self.roles.to_json().encode())
        return self.roles.rehearsed

    def close(self) -> list[str]:
        """Publish that there will be no other roles; return where ranks did not make the same calls."""
        self._own.write("ends")
        for journal in self._journals.values():
            journal.read_on()
        return unequal_calls(sorted(self._journals.items()))


def _with_stages(axes: list[Axis], pair: tuple[int, int], num_gpus: int) -> list[Axis]:
    """`axes`, with those in which `pair` send to each other as a pipeline, if nothing says what they are."""
    both = [axis for axis in axes if any(set(pair) <= set(ranks) for ranks in axis.groups)]
    if any(axis.kind != "unknown" for axis in both):
        return axes
    if not both:
        return [*axes, Axis("pipeline", (tuple(range(num_gpus)),))]
    smallest = min(both, key=lambda axis: axis.size)
    return [Axis("pipeline", axis.groups) if axis is smallest else axis for axis in axes]
