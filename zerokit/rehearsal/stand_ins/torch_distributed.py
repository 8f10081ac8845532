"""Makes torch.distributed create virtual process groups, whichever backend the script asks for.

Python objects are handed between the rehearsed ranks without a group's own collectives.
"""

from __future__ import annotations

import datetime
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from zerokit.patches import Patch, put, wrap
from zerokit.rehearsal.ranks.exchange import UNKNOWN, Exchange
from zerokit.rehearsal.ranks.groups import Groups
from zerokit.rehearsal.ranks.roles import Ranks
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in
from zerokit.rehearsal.stand_ins.virtual_process_group import BACKEND, VirtualProcessGroup
from zerokit.rehearsal.timing.timed_process_group import TimedProcessGroup

OWNERS = ("torch.distributed", "torch.distributed.distributed_c10d")
"""The modules that have each function of torch.distributed."""
_OBJECTS = {
    name: [Patch(owner, name, "hand objects between ranks") for owner in OWNERS]
    for name in ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list")
}
_GROUPS, _CALLED, _ALONE = "make virtual groups", "call every group nccl", "wait for no other rank"
_MAKERS = (*OWNERS, "torch.distributed.device_mesh")
"""Modules with functions that make groups; init_device_mesh makes the default group if there is none."""
_INITS = [Patch(owner, "init_process_group", _GROUPS) for owner in _MAKERS]
_NEW_GROUPS = [Patch(owner, "new_group", _GROUPS) for owner in _MAKERS]
_SPLITS = [Patch(owner, "split_group", _GROUPS) for owner in OWNERS]
_GET_BACKENDS = [Patch(owner, "get_backend", _CALLED) for owner in OWNERS]
_NCCL_AVAILABLE = [Patch(owner, "is_nccl_available", _CALLED) for owner in OWNERS]
_MESH = Patch(f"{_MAKERS[-1]}:DeviceMesh", "__init__", "know what the group of all ranks is for")
MONITORED_BARRIERS = [Patch(owner, "monitored_barrier", _ALONE) for owner in OWNERS]
_STORE_BARRIER = Patch(OWNERS[1], "_store_based_barrier", _ALONE)
_RECORDER = Patch(OWNERS[1], "_maybe_attach_flight_recorder", "record no calls of groups in C++", since="2.15")

GroupMaker = Callable[[Any, int, int, datetime.timedelta], "VirtualProcessGroup"]
"""Makes a group from its store, this process's rank in it, its size and its timeout."""


@stand_in("torch.distributed.init_process_group", "torch.distributed.new_group", "init_device_mesh")
def install(setup: RankSetup) -> None:
    """Give all calls of torch.distributed.init_process_group and new_group a :class:`VirtualProcessGroup`."""
    rank = setup.rank
    traffic, exchange, time, world_size = rank.traffic, rank.exchange, rank.time, rank.num_gpus
    groups = Groups(exchange)

    def create(_store: Any, group_rank: int, group_size: int, _timeout: datetime.timedelta) -> VirtualProcessGroup:
        if time is not None:
            return TimedProcessGroup(group_rank, group_size, traffic, exchange, groups, time=time)
        return VirtualProcessGroup(group_rank, group_size, traffic, exchange, groups)

    def alone() -> Any:
        return dist.HashStore()  # type: ignore[attr-defined]

    def note(ranks: Ranks, group: Any, description: str | None) -> None:
        number = groups.note(ranks, group, description)
        if isinstance(group, VirtualProcessGroup):
            group.number = number

    install_groups(create, alone, rank=rank.rank, world_size=world_size, note=note)

    def make_mesh(make: Any, made: Any, /, *sizes: Any, **given: Any) -> None:
        make(made, *sizes, **given)  # which may note the name of a mesh
        for dimension, name in enumerate(made.mesh_dim_names or ()):
            if made.size(dimension) == world_size:
                groups.name_all_ranks(tuple(range(world_size)), f"mesh_{name}")

    wrap(_MESH, make_mesh)

    for barrier in (_STORE_BARRIER, *MONITORED_BARRIERS):
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

    The groups call themselves "nccl", which DeepSpeed, accelerate and transformers look for.

    Args:
        meet: makes the store of the group of all ranks.
        note: called with the ranks, the object and the description of each group that a script makes.
    """
    dist.Backend.register_backend(BACKEND, create, devices=["cpu", "cuda"])

    def init_process_group(join_world: Any, backend: Any = None, *_: Any, **given: Any) -> None:
        kept = {} if given.get("timeout") is None else {"timeout": given["timeout"]}
        join_world(backend=BACKEND, rank=rank, world_size=world_size, store=meet(), **kept)

    def new_group(
        make_group: Any, ranks: Any = None, timeout: Any = None, backend: Any = None, *_: Any, **given: Any
    ) -> Any:
        names = ("group_desc", "use_local_synchronization")
        kept = {name: given[name] for name in names if name in given}
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
    for split in _SPLITS:
        put(split, _split_group)
    for get_backend in _GET_BACKENDS:
        put(get_backend, lambda *_, **__: "nccl")
    for is_available in _NCCL_AVAILABLE:
        put(is_available, lambda: True)
    put(_RECORDER, _nothing)


def _split_group(parent_pg: Any = None, split_ranks: Any = (), *_: Any, **given: Any) -> Any:
    """The group of this rank among those that the parent, whose places are given, is divided into."""
    ranks = dist.get_process_group_ranks(parent_pg or dist.group.WORLD)
    description = given.get("group_desc")
    made = [dist.new_group([ranks[place] for place in places], group_desc=description) for places in split_ranks]
    return next((one for one in made if isinstance(one, dist.ProcessGroup)), None)


# ---- collectives of Python objects


class _Call:
    """The arguments of a call, by their names in torch.distributed, and the ranks of its group."""

    def __init__(self, original: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]) -> None:
        bound = inspect.signature(original).bind(*given, **named)
        bound.apply_defaults()
        self.operation, self.arguments = original.__name__, bound.arguments
        self.ranks: Ranks = tuple(dist.get_process_group_ranks(self.arguments["group"] or dist.group.WORLD))

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def root(self, name: str) -> int:
        """The rank that is given as `name`, or as a place in the group."""
        place = self.arguments.get(f"group_{name}")
        return self.ranks[place] if place is not None else self[name] or 0


class ObjectCollectives:
    """Replaces collectives of objects.

    Args:
        exchange: with the ranks that are rehearsed at the same time; the others hold the same objects.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def install(self) -> None:
        """Put them in the place of torch's."""
        for name, patches in _OBJECTS.items():
            own = getattr(self, f"_{name}")
            for patch in patches:
                wrap(patch, lambda original, *given, own=own, **named: own(_Call(original, given, named)))

    def _broadcast_object_list(self, call: _Call) -> None:
        objects, root = call["object_list"], call.root("src")
        objects[:] = self._share(call, objects, by=[root], to=call.ranks).get(root, objects)

    def _all_gather_object(self, call: _Call) -> None:
        objects = self._share(call, call["obj"], by=call.ranks, to=call.ranks)
        call["object_list"][:] = [objects.get(rank, call["obj"]) for rank in call.ranks]

    def _gather_object(self, call: _Call) -> None:
        objects = self._share(call, call["obj"], by=call.ranks, to=[call.root("dst")])
        if call["object_gather_list"] is not None:
            call["object_gather_list"][:] = [objects.get(rank, call["obj"]) for rank in call.ranks]

    def _scatter_object_list(self, call: _Call) -> None:
        root = call.root("src")
        objects = self._share(call, call["scatter_object_input_list"], by=[root], to=call.ranks).get(root)
        if objects is not None:
            call["scatter_object_output_list"][0] = objects[call.ranks.index(self._exchange.rank)]

    def _share(self, call: _Call, value: Any, *, by: Sequence[int], to: Sequence[int]) -> dict[int, Any]:
        own = self._exchange.rank
        if own not in call.ranks:
            return {}
        shared, of = value if own in by else UNKNOWN, by if own in to else ()
        number = getattr(call["group"], "number", 0)
        objects = self._exchange.share(call.ranks, call.operation, shared, of=of, number=number)
        return {**objects, own: value} if own in by else objects
