"""The registry of patches: every name of another package that zerokit replaces, overrides or reads privately.

torch, DeepSpeed, transformers and the others promise to keep few of these names. Each is declared here as a
:class:`Patch`, with what it is for and the versions that have it. A name that an installed version lacks is
kept in :func:`missing`, which the rehearsal reports. Nothing here imports a package that is patched: changes
are made at the moment a script imports it.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any, ClassVar, TypeVar

from zerokit.errors import LaunchError

C = TypeVar("C", bound=type)

REGISTERED: list[Patch] = []
"""Every patch of the modules imported so far, in the order they were declared."""
_applied: list[Patch] = []
_missing: dict[Patch, None] = {}
_originals: list[Any] = []


@dataclass(frozen=True)
class Patch:
    """A name that zerokit replaces or overrides; registered by being made.

    Where a name differs between versions, each of its forms is a patch of its own, with bounds. All are made
    as modules are imported, so that a test sees them.
    """

    owner: str
    """``package.module`` or ``package.module:Class``."""
    name: str
    purpose: str
    """What it is replaced for, as an infinitive: "leave checkpoints unwritten"."""
    since: str | None = None
    """First version of the package that has the name; None: all before `until`."""
    until: str | None = None
    """First version that has it no longer."""
    read_by: str | None = None
    """The module that looks the name up, where `owner` may lack it, as a CPU build of torch lacks what a CUDA
    build has: the name is then added."""

    use: ClassVar[str] = "replaces"

    def __post_init__(self) -> None:
        REGISTERED.append(self)

    @property
    def module(self) -> str:
        return self.owner.partition(":")[0]

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    def is_for(self, installed: str) -> bool:
        """Whether that version of the package is to have the name."""
        number = _numbers(installed)
        return (self.since is None or number >= _numbers(self.since)) and (
            self.until is None or number < _numbers(self.until)
        )

    def holder(self) -> Any:
        """The owner itself, None if it is not there; its module must be imported."""
        found: Any = sys.modules[self.module]
        for part in filter(None, self.owner.partition(":")[2].split(".")):
            found = getattr(found, part, None)
        return found

    def is_found(self) -> bool:
        """Whether the owner is there and has the name."""
        holder = self.holder()
        return holder is not None and hasattr(holder, self.name)

    def __str__(self) -> str:
        """What its absence means, in one line."""
        name = f"{self.owner.replace(':', '.')}.{self.name}"
        package = f"{self.package} {version(self.package)}"
        return f"{package} has no {name}, which zerokit {self.use} to {self.purpose}"


class PrivateAttribute(Patch):
    """An attribute that instances of the owner are given, as its methods show, and that zerokit reads."""

    use: ClassVar[str] = "reads"

    def is_found(self) -> bool:
        holder = self.holder()
        if holder is None or hasattr(holder, self.name):
            return holder is not None
        own = (base for base in holder.__mro__ if base.__module__.partition(".")[0] == self.package)
        members = (
            inspect.unwrap(getattr(member, "fget", member)) for base in own for member in vars(base).values()
        )
        return any(_assigns(getattr(member, "__code__", None), self.name) for member in members)


class Override(Patch):
    """A method of the owner that a subclass of zerokit's overrides: see :func:`overriding`."""

    use: ClassVar[str] = "overrides"


def _assigns(code: CodeType | None, name: str) -> bool:
    """Whether a function gives something an attribute of that name; its source would take long to parse."""
    if code is None:
        return False
    if name in code.co_names and any(
        step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(code)
    ):
        return True
    return any(_assigns(inner, name) for inner in code.co_consts if isinstance(inner, CodeType))


def declare(owner: str, *names: str, purpose: str, **bounds: str | None) -> tuple[Patch, ...]:
    """A patch for each of `names`, which share all else."""
    return tuple(Patch(owner, name, purpose, **bounds) for name in names)


def apply(patch: Patch, make: Callable[[Any], Any]) -> None:
    """Replace a name by what `make` returns for the original, now or as soon as its module is imported.

    Args:
        patch: what to replace; left alone in versions that it is not for.
        make: takes the original; None if there is none, which only a patch with `read_by` allows.
    """
    _applied.append(patch)

    def change(_module: ModuleType) -> None:
        if _is_there(patch):
            replace(patch.holder(), patch.name, make)

    when_imported(patch.module, change)


def put(patch: Patch, replacement: Any) -> None:
    """As :func:`apply`, where the original is not needed."""
    apply(patch, lambda _original: replacement)


def wrap(patch: Patch, around: Callable[..., Any]) -> None:
    """Have calls of a function or method go to `around`, with the original before their arguments."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapped(*arguments: Any, **given: Any) -> Any:
            return around(original, *arguments, **given)

        return wrapped

    apply(patch, make)


def refuses(frame: FrameType) -> bool:
    """Whether a call that failed in `frame` is one that a replacement refuses, and the original takes."""
    called = frame.f_locals
    if frame.f_code.co_filename != __file__ or frame.f_code.co_name != "wrapped":
        return False
    try:
        inspect.signature(called["original"]).bind(*called["arguments"], **called["given"])
    except (TypeError, ValueError):
        return False
    return True


def watch(attribute: PrivateAttribute) -> None:
    """See that an attribute is there, now or as soon as its module is imported."""
    _applied.append(attribute)
    when_imported(attribute.module, lambda _module: _is_there(attribute))


def replace(holder: Any, name: str, make: Callable[[Any], Any]) -> None:
    """As :func:`apply`, in an owner that is at hand: such as a subclass of the one that is declared."""
    kept = inspect.getattr_static(holder, name, None)
    is_of_class = isinstance(kept, classmethod)
    original = kept.__func__ if is_of_class else getattr(holder, name, None)
    _originals.append(original)
    replacement = make(original)
    if is_of_class:
        replacement = classmethod(replacement)
    elif isinstance(kept, staticmethod):
        replacement = staticmethod(replacement)
    try:
        setattr(holder, name, replacement)
    except TypeError:  # a class that C made lets nobody set its attributes
        _set_of_c_class(holder, name, replacement)


def _set_of_c_class(holder: type, name: str, replacement: Any) -> None:
    (attributes,) = gc.get_referents(holder.__dict__)  # behind the proxy that can be read alone
    attributes[name] = replacement
    ctypes.pythonapi.PyType_Modified(
        ctypes.py_object(holder)
    )  # else it is looked up where it was found before


def is_original(value: Any) -> bool:
    """Whether a replacement stands where `value` stood."""
    return value is not None and any(value is original for original in _originals)


def _is_there(patch: Patch) -> bool:
    """Whether there is something to replace; noted for :func:`missing` if there should be and is not."""
    if not patch.is_for(version(patch.package)):
        return False
    found = patch.is_found() or (patch.read_by is not None and patch.holder() is not None)
    if not found:
        _missing[patch] = None
    return found


def overriding(owner: str, **purposes: str) -> Callable[[C], C]:
    """A class decorator: by which methods a class overrides another package's, and what for.

    Raises:
        LaunchError: the installed version has one of them no longer.
    """
    overrides = [Override(owner, name, purpose) for name, purpose in purposes.items()]

    def check(cls: C) -> C:
        for override in overrides:
            if not override.is_found():
                raise LaunchError(
                    str(override),
                    where=f"{cls.__module__}.{cls.__qualname__}",
                    hint=f"Install a version of {override.package} that zerokit is tested with",
                )
        return cls

    return check


def missing() -> list[str]:
    """One line for each name that was to be replaced or read and that an imported package lacks."""
    gone = [patch for patch in _applied if _is_gone(patch.module) and patch.is_for(version(patch.package))]
    return [str(patch) for patch in dict.fromkeys([*_missing, *gone])]


def _is_gone(module: str) -> bool:
    """Whether the package of `module` is imported and has it no longer; imports nothing."""
    parent = module.rpartition(".")[0]
    if module in sys.modules or not parent:
        return False
    if parent not in sys.modules:
        return _is_gone(parent)
    path = getattr(sys.modules[parent], "__path__", [])
    return importlib.machinery.PathFinder.find_spec(module, path) is None


@functools.cache
def version(package: str) -> str:
    """The installed version of `package`; "0" if it has none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(package), "__version__", "0"))


def _numbers(text: str) -> tuple[int, ...]:
    """Without zeros at its end, so that 2.9 and 2.9.0 are the same."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", found[0]).split("."))) if found else ()


Change = Callable[[ModuleType], object]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that are to be changed; leaves all others to the finders after it."""

    def __init__(self) -> None:
        self.changes: dict[str, list[Change]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.changes:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None and spec.loader is not None), None)
        if spec is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(self._load, loader.exec_module)
        return spec

    def _load(self, load: Callable[[ModuleType], None], module: ModuleType) -> None:
        load(module)
        for change in self.changes[module.__name__]:
            change(module)


_finder = _Finder()


def when_imported(name: str, change: Change) -> None:
    """Call `change` with module `name`: now if it is imported already, else right after it is."""
    if name in sys.modules:
        change(sys.modules[name])
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.changes.setdefault(name, []).append(change)
