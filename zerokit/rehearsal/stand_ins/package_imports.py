"""Imports of packages that compile with CUDA's toolkit: finds a stand-in if the package is not installed.

The functions of a stand-in allocate what the compiled code allocates and compute nothing. Every library finds
FlashAttention, because libraries leave the choice to the script. Other packages are found if `--has` names
them, or once the script imports them without a fallback: a library that finds one by chance, as transformers
may find Apex, would take another path than on a cluster without it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from zerokit.code_origin import INSTALLED, is_stdlib
from zerokit.rehearsal.call_sites import OWN, is_of_script, is_own_code, short_path, tree_of
from zerokit.rehearsal.context import note, rank_context
from zerokit.rehearsal.stand_ins.packages import (
    Package,
    is_folder_without_code,
    is_installed,
    known_packages,
    normalized,
    package_implemented_by,
    package_of,
)
from zerokit.rehearsal.stand_ins.refused import refused_function
from zerokit.rehearsal.stand_ins.registry import RankSetup, stand_in

_REHEARSAL = "zerokit.rehearsal"
_LOADED = "{what} is not installed here and was stood in for, since {why}: its functions allocate what its kernels do"
_LACKING = (
    "{what} may be there on the cluster, and its stand-in is not ({why}): what the script does without it may take "
    "other memory"
)
_WITHOUT = (
    "{0} is not installed here, and the script goes on without ({1}): if the cluster has it, add --has {0}, "
    "and it is stood in for"
)
_CATCHING = re.compile(r"\b(ImportError|ModuleNotFoundError|Exception|BaseException)\b")


class Packages:
    """The packages with a stand-in on this rank."""

    def __init__(self) -> None:
        self.has: Mapping[str, str | None] = {}
        """The distributions that `--has` names, and their versions."""
        self._imported: dict[str, str] = {}
        """Distributions that the script imports, and the line."""
        self._optional: dict[str, str] = {}
        """Distributions that the script imports and goes on without, and the line."""

    def version(self, package: Package) -> str:
        """The version that the stand-in reports."""
        return self.has.get(package.distribution) or package.newest

    def reason(self, package: Package) -> str | None:
        """Why a package is found: empty if all find it; None if it is not."""
        name = package.distribution
        if package.is_always_found:
            return ""
        if name in self.has:
            return "--has names it"
        frames = list(_script_frames())
        if name not in self._imported and frames and _imports(frames[0], package):
            line = f"{short_path(frames[0].f_code.co_filename)}:{frames[0].f_lineno}"
            (self._optional if any(map(_is_optional, frames)) else self._imported).setdefault(name, line)
        return f"{self._imported[name]} imports it" if name in self._imported else None

    def warnings(self) -> list[str]:
        """A line for each package that the script goes on without."""
        without = {name: line for name, line in self._optional.items() if name not in self._imported}
        return [_WITHOUT.format(name, line) for name, line in without.items()]


def _note_lacking(name: str) -> None:
    """Keep for the report that a stand-in lacks a name: the script may take another path."""
    if frame := next(_script_frames(), None):
        note(_LACKING, name, f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}")


@stand_in("flash_attn", "flash_attn_interface", "flash_attn.cute", "apex", "grouped_gemm")
def install(setup: RankSetup) -> None:
    """Answer imports of each known package that is not installed.

    Call before transformers is imported, which remembers what is installed.
    """
    rank_context().state(Packages).has = setup.has
    names = {name for package in known_packages() for name in package.top_level}
    absent = {name for name in names if name not in sys.modules and not is_installed(name)}
    if absent:
        # In front of the finder that takes a folder without code for a package.
        sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), _Finder(absent))


def stands_in_for(module: str) -> tuple[str, str] | None:
    """The package and version that a module replaces, and a hint where it differs; None if it replaces none.

    `module` is its name as scripts import it, or that of the file that implements it.
    """
    package = package_of(module) if is_a_stand_in(module) else package_implemented_by(module)
    if package is None:
        return None
    packages = rank_context().state(Packages)
    words = f"{package.distribution} {packages.version(package)}"
    if not package.oldest:
        return (
            words,
            "If the package itself has what fails here, choose a setting that does without it, or measure "
            "this run on a GPU; otherwise the cluster shows what is printed above, too",
        )
    is_named = packages.has.get(package.distribution) is not None
    return (
        f"{words}, {'as --has names it' if is_named else 'the newest that it knows'}",
        f"If the cluster has another release, name it: --has {package.distribution}==VERSION. If it has this "
        "one, it shows what is printed above, too, or the stand-in is wrong: then please report it",
    )


def is_a_stand_in(module: str) -> bool:
    """Whether `module` would be in a package that has a stand-in."""
    spec = getattr(sys.modules.get(module.partition(".")[0]), "__spec__", None)
    return spec is not None and (spec.origin or "").startswith(OWN)


class _Loader(importlib.abc.Loader):
    """Fills a module with the public names of the one that implements it."""

    def __init__(self, package: Package, reason: str) -> None:
        self._package, self._reason = package, reason

    def exec_module(self, module: ModuleType) -> None:
        packages = rank_context().state(Packages)
        package, reason, name = self._package, self._reason, module.__name__
        version = packages.version(package)
        is_refused = package.modules[name] == "stand_ins.refused"
        if package.modules[name]:
            source = importlib.import_module(f"{_REHEARSAL}.{package.modules[name]}")
            names = {word: of_version(getattr(source, word), version) for word in source.__all__}
            module.__dict__.update({word: value for word, value in names.items() if value is not None})
        if "." not in name:
            module.__dict__["__version__"] = version
        inside = frozenset(inner for inner in package.modules if inner.startswith(f"{name}."))

        def find_inside(word: str) -> Any:
            """A module inside, which the real package imports by itself."""
            if f"{name}.{word}" in inside:
                return importlib.import_module(f"{name}.{word}")
            if is_refused and not word.startswith("__"):
                return refused_function(f"{name}.{word}")
            if reason and not word.startswith("__"):
                _note_lacking(f"{name}.{word}")
            raise AttributeError(f"module '{name}' has no attribute '{word}'", name=word, obj=module)

        if inside or reason or is_refused:
            module.__dict__["__getattr__"] = find_inside
        if reason:
            note(_LOADED, f"{package.distribution} {version}", reason)


def of_version(value: Any, version: str) -> Any:
    """The form of `value` in `version` of its package; None if that version lacks it."""
    of = getattr(value, "of_version", None)
    return value if of is None else of(version)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the stand-in modules, and the distributions that they pretend to come from."""

    def __init__(self, top_level: set[str]) -> None:
        self._top_level = top_level

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package = package_of(name)
        if package is None or name.partition(".")[0] not in self._top_level:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        others = (finder.find_spec(name, path, target) for finder in behind)
        found = next((spec for spec in others if spec is not None), None)
        if found is not None and not is_folder_without_code(found):
            return found  # a real package always goes first
        packages = rank_context().state(Packages)
        reason = packages.reason(package)
        if reason is None or (package.hidden_from and _looking_library() in package.hidden_from):
            return None
        if name not in package.modules:
            if reason:
                _note_lacking(name)
            return None
        # With an origin, or Python takes it for a namespace package.
        loader = _Loader(package, reason)
        is_package = any(inner.startswith(f"{name}.") for one in known_packages() for inner in one.modules)
        return importlib.machinery.ModuleSpec(name, loader, origin=__file__, is_package=is_package)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context | None = None
    ) -> Iterator[importlib.metadata.Distribution]:
        wanted = normalized(context.name) if context is not None and context.name else None
        packages = rank_context().state(Packages)
        for package in known_packages():
            absent = sorted(package.top_level & self._top_level)
            is_wanted = wanted in (None, package.distribution)
            if absent and is_wanted and packages.reason(package) is not None:
                yield _Distribution(package.distribution, packages.version(package), absent)


def _script_frames() -> Iterator[FrameType]:
    """The script's own frames on the stack; none if a library is the caller."""
    is_first = True
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        if not is_own_code(file):  # what finds modules, here and in Python
            if is_of_script(file) and not any(Path(file).parent.glob("*.dist-info")):  # pip install --target
                yield frame
            elif is_first:
                return
            is_first = False


def _imports(frame: FrameType, package: Package) -> bool:
    """Whether the line of `frame` is a statement that imports the package."""
    for node in ast.walk(tree_of(frame.f_code.co_filename)):
        if isinstance(node, ast.Import | ast.ImportFrom) and _is_at(frame, node):
            aliases = [alias.name for alias in node.names]
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else aliases
            if any(name.partition(".")[0] in package.top_level for name in names):
                return True
    return False


def _is_at(frame: FrameType, first: ast.stmt, last: ast.stmt | None = None) -> bool:
    """Whether the line of `frame` is in a statement, or in those from `first` to `last`."""
    return first.lineno <= frame.f_lineno <= ((last or first).end_lineno or 0)


def _is_optional(frame: FrameType) -> bool:
    """Whether the import at `frame` is in a `try` with a fallback, or in `suppress`."""
    return any(
        _is_at(frame, node.body[0], node.body[-1])
        and (
            any(map(_goes_on, node.handlers))
            if isinstance(node, ast.Try)
            else "suppress" in ast.unparse(node.items[0].context_expr)
        )
        for node in ast.walk(tree_of(frame.f_code.co_filename))
        if isinstance(node, ast.Try | ast.With)
    )


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Whether it catches an import that fails, and does not end the script."""
    catches = handler.type is None or _CATCHING.search(ast.unparse(handler.type)) is not None
    ends = any(isinstance(one, ast.Raise) or "exit(" in ast.unparse(one) for one in handler.body)
    return catches and not ends


def _looking_library() -> str | None:
    """The installed package that looks for a module; None if it is the user's code."""
    paths = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe(1)))
    path = next((one for one in paths if not (is_own_code(one) or is_stdlib(one))), "")
    inside = (path.rpartition(folder)[2] for folder in INSTALLED if folder in path)
    return next((file.partition("/")[0] for file in inside), None)


class _Distribution(importlib.metadata.Distribution):
    """Metadata of a package that has no files."""

    def __init__(self, name: str, version: str, modules: Sequence[str]) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "top_level.txt": "".join(f"{module}\n" for module in modules),
        }

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(str(filename))

    def locate_file(self, path: object) -> Path:
        return Path(__file__).parent / str(path)
