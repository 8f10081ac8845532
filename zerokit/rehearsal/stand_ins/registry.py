"""The registry of stand-ins, which modules of `stand_ins` and `contrib` mark with :func:`stand_in`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from zerokit.hardware.cluster import Cluster
from zerokit.rehearsal.devices import VirtualDevice
from zerokit.rehearsal.worker.virtual_rank import VirtualRank

_PACKAGES = ("zerokit.rehearsal.stand_ins", "zerokit.rehearsal.contrib")


@dataclass(frozen=True)
class RankSetup:
    """The rank, device and folders that stand-ins are installed for."""

    rank: VirtualRank
    device: VirtualDevice
    generated: Path
    """A folder for code that compilers write."""
    has: Mapping[str, str | None]
    """The distributions that `--has` names, and their versions."""

    @property
    def local_ranks(self) -> int:
        """Ranks on a node."""
        return Cluster(self.rank.num_gpus, self.rank.gpus_per_node).local_ranks

    @property
    def local_rank(self) -> int:
        return self.rank.rank % self.local_ranks


Install = Callable[[RankSetup], None]


@dataclass(frozen=True)
class StandIn:
    """A registered stand-in; called, it is put in place."""

    replaces: tuple[str, ...]
    """Names that people look for: packages, functions, classes, commands."""
    install: Install

    def __call__(self, setup: RankSetup) -> None:
        self.install(setup)

    @property
    def module(self) -> str:
        return self.install.__module__


def stand_in(*replaces: str) -> Callable[[Install], StandIn]:
    """Register the decorated function, which puts a stand-in in place for `replaces`."""
    return lambda install: StandIn(replaces, install)


@functools.cache
def registered() -> tuple[StandIn, ...]:
    """Every stand-in, in the order of the modules' names."""
    found = (
        value
        for module in _modules()
        for value in vars(module).values()
        if isinstance(value, StandIn) and value.module == module.__name__
    )
    return tuple(found)


def install_all(setup: RankSetup) -> None:
    """Put every stand-in in place."""
    for one in registered():
        one(setup)


def op_module(name: str, **members: object) -> ModuleType:
    """A module in place of a compiled extension; without ``__file__``, so that it is not loaded."""
    module = ModuleType(name, "Stands in for a compiled extension.")
    module.__dict__.update(members)
    return module


def _modules() -> Iterator[ModuleType]:
    for package in map(importlib.import_module, _PACKAGES):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)
