"""Collectives of torch.distributed for Python objects, exchanged between the rehearsed ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.ranks.exchange import UNKNOWN, Exchange
from zerokit.rehearsal.ranks.roles import Ranks

OWNERS = ("torch.distributed", "torch.distributed.distributed_c10d")
"""The modules that have each function of torch.distributed."""
_PURPOSE = "hand objects between ranks"
_BROADCASTS = [Patch(owner, "broadcast_object_list", _PURPOSE) for owner in OWNERS]
_ALL_GATHERS = [Patch(owner, "all_gather_object", _PURPOSE) for owner in OWNERS]
_GATHERS = [Patch(owner, "gather_object", _PURPOSE) for owner in OWNERS]
_SCATTERS = [Patch(owner, "scatter_object_list", _PURPOSE) for owner in OWNERS]


class ObjectCollectives:
    """Replaces these collectives; arguments are as in torch.distributed.

    Args:
        exchange: through which the ranks that are rehearsed hear each other. Where this rank is rehearsed by
            itself, it goes on with its own objects, as if the others held the same.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def install(self) -> None:
        """Put them in the place of torch's."""
        found: tuple[tuple[list[Patch], Callable[..., None]], ...] = (
            (_BROADCASTS, self.broadcast),
            (_ALL_GATHERS, self.all_gather),
            (_GATHERS, self.gather),
            (_SCATTERS, self.scatter),
        )
        for patches, stand_in in found:
            for patch in patches:
                wrap(patch, lambda _original, *given, call=stand_in, **named: call(*given, **named))

    def broadcast(
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

    def all_gather(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        ranks = _ranks(group)
        objects = self._share(group, ranks, "all_gather_object", obj, by=ranks, to=ranks)
        object_list[:] = [objects.get(rank, obj) for rank in ranks]

    def gather(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        ranks = _ranks(group)
        root = _root(ranks, dst, group_dst)
        objects = self._share(group, ranks, "gather_object", obj, by=ranks, to=[root])
        if object_gather_list is not None:
            object_gather_list[:] = [objects.get(rank, obj) for rank in ranks]

    def scatter(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        ranks = _ranks(group)
        root = _root(ranks, src, group_src)
        objects = self._share(
            group, ranks, "scatter_object_list", scatter_object_input_list, by=[root], to=ranks
        )
        if objects.get(root) is not None:
            scatter_object_output_list[0] = objects[root][ranks.index(self._exchange.rank)]

    def _share(
        self, group: Any, ranks: Ranks, operation: str, value: Any, *, by: Sequence[int], to: Sequence[int]
    ) -> dict[int, Any]:
        own = self._exchange.rank
        if own not in ranks:
            return {}
        objects = self._exchange.share(
            ranks,
            operation,
            value if own in by else UNKNOWN,
            of=by if own in to else (),
            number=getattr(group, "number", 0),
        )
        return {**objects, own: value} if own in by else objects


def _ranks(group: Any) -> Ranks:
    return tuple(dist.get_process_group_ranks(group or dist.group.WORLD))


def _root(ranks: Ranks, root: int | None, group_root: int | None) -> int:
    return ranks[group_root] if group_root is not None else root or 0
