"""The process groups that the script makes, and what each is for by the names that it goes by."""

from __future__ import annotations

import json
import linecache
import re
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from zerokit.rehearsal.call_sites import is_in, is_own_code
from zerokit.rehearsal.ranks.exchange import Exchange
from zerokit.rehearsal.ranks.roles import GroupKind, Ranks

_NAMES: dict[GroupKind, frozenset[str]] = {
    "data": frozenset({"data", "dp", "ddp", "fsdp", "hsdp", "edp", "replicate", "replica", "shard", "zero"}),
    "pipeline": frozenset({"pipe", "pipeline", "pp", "stage", "stages"}),
    "sequence": frozenset({"sequence", "seq", "sp", "context", "cp", "ulysses", "ring"}),
    "expert": frozenset({"expert", "experts", "ep", "moe"}),
    "tensor": frozenset({"tensor", "tp", "model", "mp", "slice"}),
}
"""Words in the names of groups, as DeepSpeed, Megatron and torch's device meshes have them; an expert's group
of data parallelism is one of data."""
_PASSED_OVER = ("torch/distributed/", "deepspeed/comm/")


@dataclass
class _Made:
    ranks: Ranks
    group: Any
    where: str
    description: str
    line: str
    function: str
    holders: tuple[Any, ...]
    """Whose attributes the group may become."""


class Groups:
    """Tells of the groups of this rank; rank 0's are what the roles of the run are found from.

    Args:
        exchange: whom to tell.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        exchange.publish_groups = self.settle
        self._made: list[_Made] = []
        self._told = 0

    def note(self, ranks: Ranks, group: Any, description: str | None) -> int:
        """Take in a group as it is made; `group` is what its members are given.

        Returns:
            its number, as of :meth:`Exchange.register_group`.
        """
        number = self._exchange.register_group(ranks)
        frame = _maker()
        self._made.append(
            _Made(
                ranks,
                group,
                f"{frame.f_code.co_filename}:{frame.f_lineno} {description or ''}",
                description or "",
                linecache.getline(frame.f_code.co_filename, frame.f_lineno),
                frame.f_code.co_name,
                _holders(frame),
            )
        )
        return number

    def name_all_ranks(self, ranks: Ranks, description: str) -> None:
        """Take in what the group of all ranks is for besides: torch makes none of its own for it."""
        where = f"group of all {len(ranks)} ranks {description}"
        if where not in (made.where for made in self._made):
            self._made.append(_Made(ranks, None, where, description, "", "", ()))

    def settle(self) -> None:
        """As rank 0: tell of the groups made so far, once they are in use and go by their names."""
        if self._exchange.rank or self._told == len(self._made):
            return
        self._told = len(self._made)
        told = [(made.where, _kind(made), made.ranks) for made in self._made]
        self._exchange.publish(f"groups.{self._told}", payload=json.dumps(told).encode())


def _maker() -> FrameType:
    """Who asked for the group: not torch, which makes those of device meshes, and nobody who passes it on."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        path = frame.f_code.co_filename
        if not is_own_code(path) and not any(is_in(path, folder) for folder in _PASSED_OVER):
            break
        frame = frame.f_back
    return frame


def _holders(frame: FrameType) -> tuple[Any, ...]:
    """The variables of the maker's module, and the object whose method it is; neither is kept alive."""
    owner = frame.f_locals.get("self")
    module = sys.modules.get(frame.f_globals.get("__name__", ""))
    found = []
    for holder in (module, owner):
        try:
            found.append(weakref.ref(holder))
        except TypeError:
            continue
    return tuple(found)


def _kind(made: _Made) -> GroupKind:
    for name in _names(made):
        words = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
        kinds = [kind for kind, known in _NAMES.items() if known & words]
        if kinds and (len(kinds) == 1 or kinds[0] == "data"):
            return kinds[0]
    return "unknown"


def _names(made: _Made) -> Iterator[str]:
    """What the group is called, the most telling first."""
    yield made.description
    for holder in made.holders:
        for name, value in list(getattr(holder(), "__dict__", {}).items()):
            values = value.values() if isinstance(value, dict) else (value,)
            if any(one is made.group for one in values) and _is_a_group(made.group):
                yield name
    target, equals, _ = made.line.partition("=")
    if equals:
        yield target
    yield made.function


def _is_a_group(group: Any) -> bool:
    return not isinstance(group, int | type(None)) and hasattr(group, "size")
