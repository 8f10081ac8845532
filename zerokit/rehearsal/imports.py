"""Changes to modules at the moment they are first imported: what a script does not use stays out."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

Change = Callable[[ModuleType], None]


class _ChangingLoader(importlib.abc.Loader):
    """Loads a module as its own loader does, then changes it."""

    def __init__(self, loader: importlib.abc.Loader, changes: list[Change]) -> None:
        self._loader = loader
        self._changes = changes

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # importlib.resources, inspect and others ask the module for its loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for change in self._changes:
            change(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are to be changed; leaves all others to the finders after it."""

    def __init__(self) -> None:
        self.changes: dict[str, list[Change]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.changes:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _ChangingLoader(spec.loader, self.changes[name])
                return spec
        return None


_finder = _Finder()


def when_imported(name: str, change: Change) -> None:
    """Call `change` with module `name`: now if it is imported already, else right after it is."""
    if name in sys.modules:
        change(sys.modules[name])
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.changes.setdefault(name, []).append(change)
