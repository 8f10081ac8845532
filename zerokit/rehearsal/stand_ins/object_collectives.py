"""Collectives of Python objects among the rehearsed ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.ranks.exchange import UNKNOWN, Exchange
from zerokit.rehearsal.ranks.roles import Ranks

OWNERS = ("torch.distributed", "torch.distributed.distributed_c10d")
"""The modules that have each function of torch.distributed."""
_OBJECTS = {
    name: [Patch(owner, name, "hand objects between ranks") for owner in OWNERS]
    for name in ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list")
}


class ObjectCollectives:
    """Replaces collectives of objects; arguments are as in torch.distributed.

    Args:
        exchange: with the ranks that are rehearsed at the same time; the others hold the same objects.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def install(self) -> None:
        """Put them in the place of torch's."""
        for name, patches in _OBJECTS.items():
            own = getattr(self, name)
            for patch in patches:
                wrap(patch, lambda _original, *given, own=own, **named: own(*given, **named))

    def broadcast_object_list(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
        **_: Any,
    ) -> None:
        ranks = _ranks(group)
        root = _root(ranks, src, group_src)
        objects = self._share(group, ranks, "broadcast_object_list", object_list, by=[root], to=ranks)
        object_list[:] = objects.get(root, object_list)

    def all_gather_object(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        ranks = _ranks(group)
        objects = self._share(group, ranks, "all_gather_object", obj, by=ranks, to=ranks)
        object_list[:] = [objects.get(rank, obj) for rank in ranks]

    def gather_object(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        ranks = _ranks(group)
        objects = self._share(group, ranks, "gather_object", obj, by=ranks, to=[_root(ranks, dst, group_dst)])
        if object_gather_list is not None:
            object_gather_list[:] = [objects.get(rank, obj) for rank in ranks]

    def scatter_object_list(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        ranks = _ranks(group)
        root, objects = _root(ranks, src, group_src), scatter_object_input_list
        found = self._share(group, ranks, "scatter_object_list", objects, by=[root], to=ranks)
        if found.get(root) is not None:
            scatter_object_output_list[0] = found[root][ranks.index(self._exchange.rank)]

    def _share(
        self, group: Any, ranks: Ranks, operation: str, value: Any, *, by: Sequence[int], to: Sequence[int]
    ) -> dict[int, Any]:
        own = self._exchange.rank
        if own not in ranks:
            return {}
        shared, of = value if own in by else UNKNOWN, by if own in to else ()
        number = getattr(group, "number", 0)
        objects = self._exchange.share(ranks, operation, shared, of=of, number=number)
        return {**objects, own: value} if own in by else objects


def _ranks(group: Any) -> Ranks:
    return tuple(dist.get_process_group_ranks(group or dist.group.WORLD))


def _root(ranks: Ranks, root: int | None, group_root: int | None) -> int:
    return ranks[group_root] if group_root is not None else root or 0
