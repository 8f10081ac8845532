"""The process groups that the script makes, and the purpose of each by its names."""

from __future__ import annotations

import json
import linecache
import re
import sys
import traceback
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from zerokit.rehearsal.call_sites import is_in, is_own_code
from zerokit.rehearsal.ranks.exchange import Exchange
from zerokit.rehearsal.ranks.roles import GroupKind, Ranks
from zerokit.tables import table_of

_NAMES: Mapping[GroupKind, Sequence[str]] = table_of(__file__)
"""Words in the names of groups of DeepSpeed, Megatron and torch's device meshes."""
_PASSED_OVER = ("torch/distributed/", "deepspeed/comm/")


@dataclass
class _NewGroup:
    ranks: Ranks
    group: Any
    where: str
    description: str
    line: str = ""
    function: str = ""
    holders: tuple[Any, ...] = ()
    """Objects whose attributes the group may become."""


class Groups:
    """Publishes the groups of this rank; the roles of the run are found from those of rank 0."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        exchange.publish_groups = self.publish
        self._made: list[_NewGroup] = []
        self._published = 0

    def note(self, ranks: Ranks, group: Any, description: str | None) -> int:
        """Register a group that is made, and return its number, as of :meth:`Exchange.register_group`."""
        frame = _maker()
        path, line = frame.f_code.co_filename, frame.f_lineno
        made = _NewGroup(ranks, group, f"{path}:{line} {description or ''}", description or "")
        made.line, made.function = linecache.getline(path, line), frame.f_code.co_name
        made.holders = _holders(frame)
        self._made.append(made)
        return self._exchange.register_group(ranks)

    def name_all_ranks(self, ranks: Ranks, description: str) -> None:
        """Register another purpose of the group of all ranks, for which torch makes no new group."""
        where = f"group of all {len(ranks)} ranks {description}"
        if where not in (made.where for made in self._made):
            self._made.append(_NewGroup(ranks, None, where, description))

    def publish(self) -> None:
        """On rank 0: publish the groups made so far, once they are in use and have their names."""
        if self._exchange.rank or self._published == len(self._made):
            return
        self._published = len(self._made)
        groups = [(made.where, _kind(made), made.ranks) for made in self._made]
        self._exchange.publish(f"groups.{self._published}", payload=json.dumps(groups).encode())


def _maker() -> FrameType:
    """The frame that made the group: not of torch, which makes those of device meshes, nor of a wrapper."""
    for frame, _ in traceback.walk_stack(sys._getframe(2)):
        path = frame.f_code.co_filename
        if not is_own_code(path) and not any(is_in(path, folder) for folder in _PASSED_OVER):
            break
    return frame


def _holders(frame: FrameType) -> tuple[Any, ...]:
    """The variables of the maker's module, and the object whose method it is; neither is kept alive."""
    owner = frame.f_locals.get("self")
    module = sys.modules.get(frame.f_globals.get("__name__", ""))
    found = []
    for holder in (module, owner):
        with suppress(TypeError):
            found.append(weakref.ref(holder))
    return tuple(found)


def _kind(made: _NewGroup) -> GroupKind:
    for name in _names(made):
        words = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))
        kinds = [kind for kind, known in _NAMES.items() if words.intersection(known)]
        if kinds and (len(kinds) == 1 or kinds[0] == "data"):
            return kinds[0]
    return "unknown"


def _names(made: _NewGroup) -> Iterator[str]:
    """Names of the group, the most specific first."""
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
