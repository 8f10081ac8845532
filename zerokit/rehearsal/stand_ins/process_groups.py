"""Makes torch.distributed create virtual process groups, whichever backend the script asks for."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from zerokit.patches import Patch, put, wrap
from zerokit.rehearsal.ranks.exchange import UNKNOWN, Exchange
from zerokit.rehearsal.ranks.groups import Groups
from zerokit.rehearsal.ranks.roles import Ranks
from zerokit.rehearsal.stand_ins.process_group import BACKEND, VirtualProcessGroup
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in
from zerokit.rehearsal.timing.process_group import TimedProcessGroup
from zerokit.rehearsal.timing.rank_time import RankTime
from zerokit.rehearsal.watching.steps import Traffic

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
        for patches, instead in found:
            for patch in patches:
                wrap(patch, lambda _original, *given, call=instead, **named: call(*given, **named))

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


_GROUPS, _CALLED, _ALONE = (
    "make virtual groups",
    "call every group nccl",
    "wait for no rank that is not there",
)
_MAKERS = (*OWNERS, "torch.distributed.device_mesh")
"""Modules with functions that make groups; init_device_mesh makes the default group if there is none."""
_INITS = [Patch(owner, "init_process_group", _GROUPS) for owner in _MAKERS]
_NEW_GROUPS = [Patch(owner, "new_group", _GROUPS) for owner in _MAKERS]
_GET_BACKENDS = [Patch(owner, "get_backend", _CALLED) for owner in OWNERS]
_NCCL_AVAILABLE = [Patch(owner, "is_nccl_available", _CALLED) for owner in OWNERS]
_MESH = Patch(f"{_MAKERS[-1]}:DeviceMesh", "__init__", "know what the group of all ranks is for")
MONITORED_BARRIERS = [Patch(owner, "monitored_barrier", _ALONE) for owner in OWNERS]
_STORE_BARRIER = Patch(OWNERS[1], "_store_based_barrier", _ALONE)

GroupMaker = Callable[[Any, int, int, datetime.timedelta], "VirtualProcessGroup"]
"""Makes a group from its store, this process's rank in it, its size and its timeout."""


@stand_in("torch.distributed.init_process_group", "torch.distributed.new_group", "init_device_mesh")
def install(setup: RankSetup) -> None:
    """Give all calls of torch.distributed.init_process_group and new_group a :class:`VirtualProcessGroup`."""
    rank = setup.rank
    install_virtual_groups(
        rank.traffic, rank.exchange, rank=rank.rank, world_size=rank.num_gpus, time=rank.time
    )


def install_virtual_groups(
    traffic: Traffic, exchange: Exchange, *, rank: int, world_size: int, time: RankTime | None = None
) -> None:
    """As :func:`install`, for a rank that is described by its parts."""
    groups = Groups(exchange)

    def create(
        _store: Any, group_rank: int, group_size: int, _timeout: datetime.timedelta
    ) -> VirtualProcessGroup:
        if time is not None:
            return TimedProcessGroup(group_rank, group_size, traffic, exchange, groups, time=time)
        return VirtualProcessGroup(group_rank, group_size, traffic, exchange, groups)

    def alone() -> Any:
        return dist.HashStore()  # type: ignore[attr-defined]

    def note(ranks: Ranks, group: Any, description: str | None) -> None:
        number = groups.note(ranks, group, description)
        if isinstance(group, VirtualProcessGroup):
            group.number = number

    install_groups(create, alone, rank=rank, world_size=world_size, note=note)

    def make_mesh(make: Any, made: Any, /, *sizes: Any, **given: Any) -> None:
        make(made, *sizes, **given)  # which may note the name of a mesh
        for dimension, name in enumerate(made.mesh_dim_names or ()):
            if made.size(dimension) == world_size:
                groups.name_all_ranks(tuple(range(world_size)), f"mesh_{name}")

    wrap(_MESH, make_mesh)

    # What would wait for the other ranks.
    put(_STORE_BARRIER, _nothing)
    for barrier in MONITORED_BARRIERS:
        put(barrier, _nothing)
    ObjectCollectives(exchange).install()


def _nothing(*_: Any, **__: Any) -> None: ...


def install_groups(
    create: GroupMaker,
    meet: Callable[[], Any],
    *,
    rank: int,
    world_size: int,
    note: Callable[[Ranks, Any, str | None], None] | None = None,
) -> None:
    """Make the groups of torch.distributed by `create`, whichever backend is requested.

    The groups call themselves "nccl", which is what DeepSpeed, accelerate and transformers look for.

    Args:
        create: makes a group.
        meet: makes the store of the group of all ranks.
        rank: of this process.
        world_size: number of processes.
        note: called with each group that a script makes: its ranks, the group, its description.
    """
    dist.Backend.register_backend(BACKEND, create, devices=["cpu", "cuda"])

    def init_process_group(join_world: Any, backend: Any = None, *_: Any, **given: Any) -> None:
        kept = {name: value for name, value in given.items() if name == "timeout" and value is not None}
        join_world(backend=BACKEND, rank=rank, world_size=world_size, store=meet(), **kept)

    def new_group(
        make_group: Any, ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **given: Any
    ) -> Any:
        kept = {
            name: value
            for name, value in given.items()
            if name in ("group_desc", "use_local_synchronization")
        }
        group = make_group(ranks, timeout, BACKEND, **kept)
        if note is not None:
            # Scripts slice them from numpy arrays, whose integers are not Python's.
            members = range(world_size) if ranks is None else sorted(map(int, ranks))
            note(tuple(members), group, given.get("group_desc"))
        return group

    for init in _INITS:
        wrap(init, init_process_group)
    for new in _NEW_GROUPS:
        wrap(new, new_group)
    for get_backend in _GET_BACKENDS:
        put(get_backend, lambda *_, **__: "nccl")
    for is_available in _NCCL_AVAILABLE:
        put(is_available, lambda: True)
