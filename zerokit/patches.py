"""The registry of patches: every name of another package that zerokit replaces, overrides or reads privately.

These names are mostly not part of a public API. Each is a :class:`Patch` with a purpose and the versions that
have it. The rehearsal reports names that an installed version lacks (:func:`missing`). This module imports no
patched package: a change is made when a script imports the package.
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
"""All patches of the modules imported so far."""
_applied: list[Patch] = []
_missing: dict[Patch, None] = {}
_originals: list[Any] = []


@dataclass(frozen=True)
class Patch:
    """A name that zerokit replaces or overrides. Making a patch registers it.

    A name that differs between versions has one patch per form, with bounds. Patches are made at import, so
    that a test sees all of them.
    """

    owner: str
    """``package.module`` or ``package.module:Class``."""
    name: str
    purpose: str
    """Why, as an infinitive: "leave checkpoints unwritten"."""
    since: str | None = None
    """First version with the name; None: all before `until`."""
    until: str | None = None
    """First version without it."""
    read_by: str | None = None
    """The module that reads the name. If `owner` lacks it, as a CPU build of torch lacks CUDA names, it is
    added."""

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
        """Whether that version of the package should have the name."""
        number = _numbers(installed)
        return (self.since is None or number >= _numbers(self.since)) and (
            self.until is None or number < _numbers(self.until)
        )

    def holder(self) -> Any:
        """The owner, None if it is missing; its module must be imported."""
        found: Any = sys.modules[self.module]
        for part in filter(None, self.owner.partition(":")[2].split(".")):
            found = getattr(found, part, None)
        return found

    def is_found(self) -> bool:
        """Whether the owner exists and has the name."""
        holder = self.holder()
        return holder is not None and hasattr(holder, self.name)

    def __str__(self) -> str:
        """One line for a missing name."""
        name = f"{self.owner.replace(':', '.')}.{self.name}"
        package = f"{self.package} {version(self.package)}"
        return f"{package} has no {name}, which zerokit {self.use} to {self.purpose}"


class PrivateAttribute(Patch):
    """An attribute that methods of the owner assign, and that zerokit reads.

    Making one registers it, so a declaration needs no name. A test checks all in :data:`REGISTERED` against
    the installed releases.
    """

    use: ClassVar[str] = "reads"

    def is_found(self) -> bool:
        holder = self.holder()
        if holder is None or hasattr(holder, self.name):
            return holder is not None
        own = (base for base in holder.__mro__ if base.__module__.partition(".")[0] == self.package)
        members = (inspect.unwrap(getattr(member, "fget", member)) for base in own for member in vars(base).values())
        return any(_assigns(getattr(member, "__code__", None), self.name) for member in members)


class Override(Patch):
    """A method that a subclass in zerokit overrides: see :func:`overriding`."""

    use: ClassVar[str] = "overrides"


def _assigns(code: CodeType | None, name: str) -> bool:
    """Whether a function assigns an attribute of that name. Bytecode is faster to search than source."""
    if code is None:
        return False
    if name in code.co_names and any(
        step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(code)
    ):
        return True
    return any(_assigns(inner, name) for inner in code.co_consts if isinstance(inner, CodeType))


def declare(owner: str, *names: str, purpose: str, **bounds: str | None) -> tuple[Patch, ...]:
    """A patch for each of `names`."""
    return tuple(Patch(owner, name, purpose, **bounds) for name in names)


def apply(patch: Patch, make: Callable[[Any], Any]) -> None:
    """Replace a name by the result of `make`, now or when its module is imported.

    Args:
        patch: nothing happens in versions that it is not for.
        make: is called with the original; with None if there is none (only for patches with `read_by`).
    """
    _applied.append(patch)

    def change(_module: ModuleType) -> None:
        if _is_there(patch):
            replace(patch.holder(), patch.name, make)

    when_imported(patch.module, change)


def put(patch: Patch, replacement: Any) -> None:
    """Replace a name by a value: :func:`apply` without the original."""
    apply(patch, lambda _original: replacement)


def wrap(patch: Patch, around: Callable[..., Any]) -> None:
    """Replace a function or method by `around`, which gets the original before the arguments."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapped(*arguments: Any, **given: Any) -> Any:
            return around(original, *arguments, **given)

        return wrapped

    apply(patch, make)


def refuses(frame: FrameType) -> bool:
    """Whether a replacement in `frame` rejected arguments that the original accepts."""
    called = frame.f_locals
    if frame.f_code.co_filename != __file__ or frame.f_code.co_name != "wrapped":
        return False
    try:
        inspect.signature(called["original"]).bind(*called["arguments"], **called["given"])
    except (TypeError, ValueError):
        return False
    return True


def watch(attribute: PrivateAttribute) -> None:
    """Check that an attribute exists, now or when its module is imported."""
    _applied.append(attribute)
    when_imported(attribute.module, lambda _module: _is_there(attribute))


def replace(holder: Any, name: str, make: Callable[[Any], Any]) -> None:
    """As :func:`apply`, for an owner that is already imported, such as a subclass of the declared owner."""
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
    except TypeError:  # a class from C is read-only
        _set_of_c_class(holder, name, replacement)


def _set_of_c_class(holder: type, name: str, replacement: Any) -> None:
    (attributes,) = gc.get_referents(holder.__dict__)  # the dict behind the read-only proxy
    attributes[name] = replacement
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(holder))  # clears the lookup cache


def is_original(value: Any) -> bool:
    """Whether a replacement has taken the place of `value`."""
    return value is not None and any(value is original for original in _originals)


def _is_there(patch: Patch) -> bool:
    """Whether the name to replace exists. A missing name is recorded for :func:`missing`."""
    if not patch.is_for(version(patch.package)):
        return False
    found = patch.is_found() or (patch.read_by is not None and patch.holder() is not None)
    if not found:
        _missing[patch] = None
    return found


def overriding(owner: str, **purposes: str) -> Callable[[C], C]:
    """A class decorator that declares which methods a class overrides, and why.

    Raises:
        LaunchError: the installed version lacks one of them.
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
    """One line for each patched name that an imported package lacks."""
    gone = [patch for patch in _applied if _is_gone(patch.module) and patch.is_for(version(patch.package))]
    return [str(patch) for patch in dict.fromkeys([*_missing, *gone])]


def _is_gone(module: str) -> bool:
    """Whether the package of `module` is imported and does not have the module; imports nothing."""
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
    """Parse a version, without trailing zeros: 2.9 and 2.9.0 are equal."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", found[0]).split("."))) if found else ()


Change = Callable[[ModuleType], object]


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules to change; leaves all others to the next finders."""

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
    """Call `change` with a module: now if it is imported, else after its import."""
    if name in sys.modules:
        change(sys.modules[name])
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.changes.setdefault(name, []).append(change)
